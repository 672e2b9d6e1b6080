"""Chat templates that --chat-template knows by name, with llama-server's names: written here, after what each model
family was trained with. A single word is a name; anything else is a template itself.
"""

import re
from collections.abc import Mapping

_NAME = re.compile(r"[\w.-]+")
_PLACES = {
    "ROLE": "{{ message.role }}",
    "TEXT": "{{ message.content or '' }}",
    "TRIMMED": "{{ (message.content or '') | trim }}",
}
"""What stands for the parts of a message below."""


def template_of(text: str) -> str:
    """Return the template that `text` names or is. Raises ValueError for a name that is not known here: taken for a
    template, it would be the whole prompt.
    """
    if text in NAMED_TEMPLATES:
        return NAMED_TEMPLATES[text]
    if _NAME.fullmatch(text):
        known = ", ".join(NAMED_TEMPLATES)
        raise ValueError(f"--chat-template {text} is neither a template nor one of the names {known}")
    return text


def _turns(
    turns: Mapping[str, str] | str, begin: str = "", *, start: str = "", is_open: bool | None = None, opener: str = ""
) -> str:
    """Return a template: `start`, then each message as `turns` says for its role ("" is any other; a string is all),
    then `begin` where a reply is to begin. `opener` stands before the first message after an assistant's, and where not
    `is_open` before the first.
    """
    by_role = {"": turns} if isinstance(turns, str) else turns
    branches = [(f"message.role == '{role}'", text) for role, text in by_role.items() if role]
    body = "".join(f"{{% {'elif' if i else 'if'} {test} %}}{text}" for i, (test, text) in enumerate(branches))
    other = by_role.get("", "")
    body = f"{body}{{% else %}}{other}{{% endif %}}" if branches else other
    opening = (
        f"{{% if not turn.is_open %}}{opener}{{% endif %}}{{% set turn.is_open = message.role in ('system', 'user') %}}"
    )
    opened = "" if is_open is None else f"{{% set turn = namespace(is_open={str(is_open).lower()}) %}}"
    source = f"{opened}{start}{{% for message in messages %}}{opening if opened else ''}{body}{{% endfor %}}"
    if begin:
        source += f"{{% if add_generation_prompt %}}{begin}{{% endif %}}"
    for place, expression in _PLACES.items():
        source = source.replace(place, expression)
    return source


def _with_system_before_user(system: str, user: str, assistant: str, between: str, begin: str = "") -> str:
    """Return a template that puts what the system says in front of what the next user does."""
    kept = f"{{% set kept.text = kept.text ~ {system} %}}"
    before = f"{{% if kept.text %}}{{{{ kept.text }}}}{between}{{% set kept.text = '' %}}{{% endif %}}"
    turns = {"system": kept, "user": user.replace("KEPT", before), "": assistant}
    return _turns(turns, begin, start="{% set kept = namespace(text='') %}")


def _llama2(system: str, text: str = "TEXT", opener: str = "[INST] ") -> str:
    turns = {"system": system, "user": f"{text} [/INST]", "": f"{text}</s>"}
    return _turns(turns, start="[INST] ", is_open=True, opener=opener)


def _mistral(opener: str, user: str, assistant: str) -> str:
    return _turns({"system": "TEXT\n\n", "user": user, "": assistant}, is_open=False, opener=opener)


def _headed(mark: str, text: str, begin: str, roles: tuple[str, ...], after: Mapping[str, str]) -> str:
    """Return a template whose messages have `mark` with their role, a text and an end; other roles are left out."""
    ends = {role: after.get(role, after[""]) for role in roles}
    return _turns({role: mark.replace("ROLE", role) + text + end for role, end in ends.items()}, begin)


_LLAMA2_SYSTEM = "<<SYS>>\nTEXT\n<</SYS>>\n\n"
_COMMAND_R = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
_COMMAND_R_ROLES = {"system": "SYSTEM", "user": "USER", "assistant": "CHATBOT"}
_VICUNA = {"user": "USER: TEXT\n", "assistant": "ASSISTANT: TEXT</s>\n"}
_EXAONE = ("system", "user", "assistant")
_GRANITE = _turns(
    "<|start_of_role|>ROLE<|end_of_role|>TEXT<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"
)
_BAILING_ROLE = "<role>{{ 'HUMAN' if message.role == 'user' else message.role | upper }}</role>TEXT"
_BAILING_BEGIN = "<role>ASSISTANT</role>"
_HY_SYSTEM = "{% if loop.first %}TEXT<｜hy_place▁holder▁no▁3｜>{% endif %}"
_PANGU = {"system": "系统", "user": "用户", "assistant": "助手", "tool": "工具", "function": "方法"}
_KIMI = {"system": "system|>system", "user": "user|>user", "assistant": "assistant|>assistant", "tool": "system|>tool"}

NAMED_TEMPLATES: Mapping[str, str] = {
    "chatml": _turns("<|im_start|>ROLE\nTEXT<|im_end|>\n", "<|im_start|>assistant\n"),
    "llama2": _llama2("TEXT\n"),
    "llama2-sys": _llama2(_LLAMA2_SYSTEM),
    "llama2-sys-bos": _llama2(_LLAMA2_SYSTEM, opener="<s>[INST] "),
    "llama2-sys-strip": _llama2(_LLAMA2_SYSTEM.replace("TEXT", "TRIMMED"), "TRIMMED"),
    "mistral-v1": _mistral(" [INST] ", "TEXT [/INST]", " TEXT</s>"),
    "mistral-v3": _mistral("[INST] ", "TEXT[/INST]", " TRIMMED</s>"),
    "mistral-v3-tekken": _mistral("[INST]", "TEXT[/INST]", "TEXT</s>"),
    "mistral-v7": _turns(
        {"system": "[SYSTEM_PROMPT] TEXT[/SYSTEM_PROMPT]", "user": "[INST] TEXT[/INST]", "": " TEXT</s>"}
    ),
    "mistral-v7-tekken": _turns(
        {"system": "[SYSTEM_PROMPT]TEXT[/SYSTEM_PROMPT]", "user": "[INST]TEXT[/INST]", "": "TEXT</s>"}
    ),
    "phi3": _turns("<|ROLE|>\nTEXT<|end|>\n", "<|assistant|>\n"),
    "phi4": _turns("<|im_start|>ROLE<|im_sep|>TEXT<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "falcon3": _turns("<|ROLE|>\nTEXT\n", "<|assistant|>\n"),
    "zephyr": _turns("<|ROLE|>\nTEXT<|endoftext|>\n", "<|assistant|>\n"),
    "monarch": _turns("{% if not loop.first %}<s>{% endif %}ROLE\nTEXT</s>\n", "<s>assistant\n"),
    "gemma": _with_system_before_user(
        "(message.content or '') | trim",
        "<start_of_turn>user\nKEPTTRIMMED<end_of_turn>\n",
        "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\nTRIMMED<end_of_turn>\n",
        "\n\n",
        "<start_of_turn>model\n",
    ),
    "orion": _with_system_before_user(
        "(message.content or '')", "Human: KEPTTEXT\n\nAssistant: </s>", "TEXT</s>", "\n\n"
    ),
    "openchat": _turns(
        {
            "system": "TEXT<|end_of_turn|>",
            "": "GPT4 Correct {{ message.role | capitalize }}: TEXT<|end_of_turn|>",
        },
        "GPT4 Correct Assistant:",
    ),
    "vicuna": _turns({"system": "TEXT\n\n", **_VICUNA}, "ASSISTANT:"),
    "vicuna-orca": _turns({"system": "SYSTEM: TEXT\n", **_VICUNA}, "ASSISTANT:"),
    "deepseek": _turns(
        {
            "system": "TEXT",
            "user": "### Instruction:\nTEXT\n",
            "assistant": "### Response:\nTEXT\n<|EOT|>\n",
        },
        "### Response:\n",
    ),
    "deepseek2": _turns(
        {"system": "TEXT\n\n", "user": "User: TEXT\n\n", "assistant": "Assistant: TEXT<｜end▁of▁sentence｜>"},
        "Assistant:",
    ),
    "deepseek3": _turns(
        {"system": "TEXT\n\n", "user": "<｜User｜>TEXT", "assistant": "<｜Assistant｜>TEXT<｜end▁of▁sentence｜>"},
        "<｜Assistant｜>",
    ),
    "deepseek-ocr": _turns("TEXT"),
    "command-r": _turns(
        {role: _COMMAND_R.format(name) + "TRIMMED<|END_OF_TURN_TOKEN|>" for role, name in _COMMAND_R_ROLES.items()},
        _COMMAND_R.format("CHATBOT"),
    ),
    "llama3": _turns(
        "<|start_header_id|>ROLE<|end_header_id|>\n\nTRIMMED<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "chatglm3": _turns("<|ROLE|>\n TEXT", "<|assistant|>", start="[gMASK]sop"),
    "chatglm4": _turns("<|ROLE|>\nTEXT", "<|assistant|>\n", start="[gMASK]<sop>"),
    "glmedge": _turns("<|ROLE|>\nTEXT", "<|assistant|>"),
    "minicpm": _turns({"user": "<用户>TRIMMED<AI>", "": "TRIMMED"}),
    "exaone3": _headed("[|ROLE|]", "TRIMMED", "[|assistant|]", _EXAONE, {"user": "\n", "": "[|endofturn|]\n"}),
    "exaone4": _headed(
        "[|ROLE|]", "TRIMMED", "[|assistant|]", (*_EXAONE, "tool"), {"user": "\n", "": "[|endofturn|]\n"}
    ),
    "exaone-moe": _headed("<|ROLE|>\n", "TRIMMED", "<|assistant|>\n", (*_EXAONE, "tool"), {"": "<|endofturn|>\n"}),
    "rwkv-world": _turns(
        {
            "system": "System: TRIMMED\n\n",
            "user": "User: TRIMMED\n\n{% if loop.last %}Assistant:{% endif %}",
            "assistant": "Assistant: TRIMMED\n\n",
        }
    ),
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "granite-4.1": _GRANITE,
    "gigachat": _turns(
        {
            "system": "{% if loop.first %}TEXT<|message_sep|>{% endif %}",
            "user": "user<|role_sep|>TEXT<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
            "assistant": "assistant<|role_sep|>TEXT<|message_sep|>",
        },
        "assistant<|role_sep|>",
        start="<s>",
    ),
    "megrez": _turns("<|role_start|>ROLE<|role_end|>TEXT<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
    "yandex": _turns({"user": " Пользователь: TEXT\n\n", "assistant": " Ассистент: TEXT\n\n"}, " Ассистент:[SEP]"),
    "bailing": _turns(_BAILING_ROLE, _BAILING_BEGIN),
    "bailing-think": _turns(_BAILING_ROLE, _BAILING_BEGIN + "<think>"),
    "bailing2": _turns(
        _BAILING_ROLE + "<|role_end|>",
        _BAILING_BEGIN,
        start="{% if not messages or messages[0].role != 'system' %}"
        "<role>SYSTEM</role>detailed thinking off<|role_end|>{% endif %}",
    ),
    "llama4": _turns(
        "<|header_start|>ROLE<|header_end|>\n\nTRIMMED<|eot|>", "<|header_start|>assistant<|header_end|>\n\n"
    ),
    "smolvlm": _turns(
        {
            "system": "TEXT\n\n",
            "user": "User: TEXT<end_of_utterance>\n",
            "": "Assistant: TEXT<end_of_utterance>\n",
        },
        "Assistant:",
        start="<|im_start|>",
    ),
    "hunyuan-moe": _turns(
        {
            "system": "<|startoftext|>TEXT<|extra_4|>",
            "assistant": "TEXT<|eos|>",
            "": "<|startoftext|>TEXT<|extra_0|>",
        }
    ),
    "gpt-oss": _turns(
        {"assistant": "<|start|>assistant<|message|>TEXT<|return|>", "": "<|start|>ROLE<|message|>TEXT<|end|>"},
        "<|start|>assistant",
    ),
    "hunyuan-dense": _turns(
        {
            "system": _HY_SYSTEM,
            "assistant": "<｜hy_Assistant｜>TEXT<｜hy_place▁holder▁no▁2｜>",
            "user": "<｜hy_User｜>TEXT<｜hy_Assistant｜>",
        }
    ),
    "hunyuan-vl": _turns(
        {"system": _HY_SYSTEM, "user": "TEXT<｜hy_User｜>", "assistant": "TEXT<｜hy_Assistant｜>"},
        start="<｜hy_begin▁of▁sentence｜>",
    ),
    "kimi-k2": _turns(
        {role: f"<|im_{name}<|im_middle|>TEXT<|im_end|>" for role, name in _KIMI.items()} | {"": "TEXT<|im_end|>"},
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    "seed_oss": _turns(
        {"assistant": "<seed:bos>assistant\nTRIMMED<seed:eos>", "": "<seed:bos>ROLE\nTEXT<seed:eos>"},
        "<seed:bos>assistant\n",
    ),
    "grok-2": _turns(
        {
            "system": "System: TRIMMED<|separator|>\n\n",
            "user": "Human: TRIMMED<|separator|>\n\n",
            "assistant": "Assistant: TEXT<|separator|>\n\n",
        },
        "Assistant:",
    ),
    "pangu-embedded": _turns(
        {role: f"[unused9]{name}：TEXT[unused10]" for role, name in _PANGU.items()},
        "[unused9]助手：",
        start="{% if messages and messages[0].role != 'system' %}[unused9]系统：[unused10]{% endif %}",
    ),
    "solar-open": _turns("<|begin|>ROLE<|content|>TEXT<|end|>", "<|begin|>assistant"),
}
