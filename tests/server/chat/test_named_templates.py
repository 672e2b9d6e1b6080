"""Chat templates by name."""

import pytest

from model.tokens.chat_template import ChatTemplate
from server.chat.named_templates import NAMED_TEMPLATES, template_of

MESSAGES: list[dict[str, object]] = [
    {"role": "system", "content": " s "},
    {"role": "user", "content": " u "},
    {"role": "assistant", "content": " a "},
    {"role": "user", "content": "v"},
]
RENDERED = {
    "chatml": "<|im_start|>system\n s <|im_end|>\n<|im_start|>user\n u <|im_end|>\n<|im_start|>assistant\n a "
    "<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n",
    "llama2": "[INST]  s \n u  [/INST] a </s>[INST] v [/INST]",
    "llama2-sys": "[INST] <<SYS>>\n s \n<</SYS>>\n\n u  [/INST] a </s>[INST] v [/INST]",
    "llama2-sys-bos": "[INST] <<SYS>>\n s \n<</SYS>>\n\n u  [/INST] a </s><s>[INST] v [/INST]",
    "llama2-sys-strip": "[INST] <<SYS>>\ns\n<</SYS>>\n\nu [/INST]a</s>[INST] v [/INST]",
    "mistral-v1": " [INST]  s \n\n u  [/INST]  a </s> [INST] v [/INST]",
    "mistral-v3": "[INST]  s \n\n u [/INST] a</s>[INST] v[/INST]",
    "mistral-v3-tekken": "[INST] s \n\n u [/INST] a </s>[INST]v[/INST]",
    "mistral-v7": "[SYSTEM_PROMPT]  s [/SYSTEM_PROMPT][INST]  u [/INST]  a </s>[INST] v[/INST]",
    "mistral-v7-tekken": "[SYSTEM_PROMPT] s [/SYSTEM_PROMPT][INST] u [/INST] a </s>[INST]v[/INST]",
    "phi3": "<|system|>\n s <|end|>\n<|user|>\n u <|end|>\n<|assistant|>\n a <|end|>\n<|user|>\nv<|end|>\n"
    "<|assistant|>\n",
    "phi4": "<|im_start|>system<|im_sep|> s <|im_end|><|im_start|>user<|im_sep|> u <|im_end|>"
    "<|im_start|>assistant<|im_sep|> a <|im_end|><|im_start|>user<|im_sep|>v<|im_end|><|im_start|>assistant"
    "<|im_sep|>",
    "falcon3": "<|system|>\n s \n<|user|>\n u \n<|assistant|>\n a \n<|user|>\nv\n<|assistant|>\n",
    "zephyr": "<|system|>\n s <|endoftext|>\n<|user|>\n u <|endoftext|>\n<|assistant|>\n a <|endoftext|>\n"
    "<|user|>\nv<|endoftext|>\n<|assistant|>\n",
    "monarch": "system\n s </s>\n<s>user\n u </s>\n<s>assistant\n a </s>\n<s>user\nv</s>\n<s>assistant\n",
    "gemma": "<start_of_turn>user\ns\n\nu<end_of_turn>\n<start_of_turn>model\na<end_of_turn>\n"
    "<start_of_turn>user\nv<end_of_turn>\n<start_of_turn>model\n",
    "orion": "Human:  s \n\n u \n\nAssistant: </s> a </s>Human: v\n\nAssistant: </s>",
    "openchat": " s <|end_of_turn|>GPT4 Correct User:  u <|end_of_turn|>GPT4 Correct Assistant:  a "
    "<|end_of_turn|>GPT4 Correct User: v<|end_of_turn|>GPT4 Correct Assistant:",
    "vicuna": " s \n\nUSER:  u \nASSISTANT:  a </s>\nUSER: v\nASSISTANT:",
    "vicuna-orca": "SYSTEM:  s \nUSER:  u \nASSISTANT:  a </s>\nUSER: v\nASSISTANT:",
    "deepseek": " s ### Instruction:\n u \n### Response:\n a \n<|EOT|>\n### Instruction:\nv\n### Response:\n",
    "deepseek2": " s \n\nUser:  u \n\nAssistant:  a <｜end▁of▁sentence｜>User: v\n\nAssistant:",
    "deepseek3": " s \n\n<｜User｜> u <｜Assistant｜> a <｜end▁of▁sentence｜><｜User｜>v<｜Assistant｜>",
    "deepseek-ocr": " s  u  a v",
    "command-r": "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>s<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
    "<|USER_TOKEN|>u<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>a<|END_OF_TURN_TOKEN|>"
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>v<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\nu<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "chatglm3": "[gMASK]sop<|system|>\n  s <|user|>\n  u <|assistant|>\n  a <|user|>\n v<|assistant|>",
    "chatglm4": "[gMASK]<sop><|system|>\n s <|user|>\n u <|assistant|>\n a <|user|>\nv<|assistant|>\n",
    "glmedge": "<|system|>\n s <|user|>\n u <|assistant|>\n a <|user|>\nv<|assistant|>",
    "minicpm": "s<用户>u<AI>a<用户>v<AI>",
    "exaone3": "[|system|]s[|endofturn|]\n[|user|]u\n[|assistant|]a[|endofturn|]\n[|user|]v\n[|assistant|]",
    "exaone4": "[|system|]s[|endofturn|]\n[|user|]u\n[|assistant|]a[|endofturn|]\n[|user|]v\n[|assistant|]",
    "exaone-moe": "<|system|>\ns<|endofturn|>\n<|user|>\nu<|endofturn|>\n<|assistant|>\na<|endofturn|>\n"
    "<|user|>\nv<|endofturn|>\n<|assistant|>\n",
    "rwkv-world": "System: s\n\nUser: u\n\nAssistant: a\n\nUser: v\n\nAssistant:",
    "granite": "<|start_of_role|>system<|end_of_role|> s <|end_of_text|>\n<|start_of_role|>user"
    "<|end_of_role|> u <|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|> a <|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>v<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "granite-4.0": "<|start_of_role|>system<|end_of_role|> s <|end_of_text|>\n<|start_of_role|>user"
    "<|end_of_role|> u <|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|> a <|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>v<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "granite-4.1": "<|start_of_role|>system<|end_of_role|> s <|end_of_text|>\n<|start_of_role|>user"
    "<|end_of_role|> u <|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|> a <|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>v<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    "gigachat": "<s> s <|message_sep|>user<|role_sep|> u <|message_sep|>available functions<|role_sep|>[]"
    "<|message_sep|>assistant<|role_sep|> a <|message_sep|>user<|role_sep|>v<|message_sep|>available functions"
    "<|role_sep|>[]<|message_sep|>assistant<|role_sep|>",
    "megrez": "<|role_start|>system<|role_end|> s <|turn_end|><|role_start|>user<|role_end|> u <|turn_end|>"
    "<|role_start|>assistant<|role_end|> a <|turn_end|><|role_start|>user<|role_end|>v<|turn_end|>"
    "<|role_start|>assistant<|role_end|>",
    "yandex": " Пользователь:  u \n\n Ассистент:  a \n\n Пользователь: v\n\n Ассистент:[SEP]",
    "bailing": "<role>SYSTEM</role> s <role>HUMAN</role> u <role>ASSISTANT</role> a <role>HUMAN</role>v"
    "<role>ASSISTANT</role>",
    "bailing-think": "<role>SYSTEM</role> s <role>HUMAN</role> u <role>ASSISTANT</role> a <role>HUMAN</role>v"
    "<role>ASSISTANT</role><think>",
    "bailing2": "<role>SYSTEM</role> s <|role_end|><role>HUMAN</role> u <|role_end|><role>ASSISTANT</role> a "
    "<|role_end|><role>HUMAN</role>v<|role_end|><role>ASSISTANT</role>",
    "llama4": "<|header_start|>system<|header_end|>\n\ns<|eot|><|header_start|>user<|header_end|>\n\nu<|eot|>"
    "<|header_start|>assistant<|header_end|>\n\na<|eot|><|header_start|>user<|header_end|>\n\nv<|eot|>"
    "<|header_start|>assistant<|header_end|>\n\n",
    "smolvlm": "<|im_start|> s \n\nUser:  u <end_of_utterance>\nAssistant:  a <end_of_utterance>\nUser: v"
    "<end_of_utterance>\nAssistant:",
    "hunyuan-moe": "<|startoftext|> s <|extra_4|><|startoftext|> u <|extra_0|> a <|eos|><|startoftext|>v<|extra_0|>",
    "gpt-oss": "<|start|>system<|message|> s <|end|><|start|>user<|message|> u <|end|><|start|>assistant"
    "<|message|> a <|return|><|start|>user<|message|>v<|end|><|start|>assistant",
    "hunyuan-dense": " s <｜hy_place▁holder▁no▁3｜><｜hy_User｜> u <｜hy_Assistant｜><｜hy_Assistant｜> a "
    "<｜hy_place▁holder▁no▁2｜><｜hy_User｜>v<｜hy_Assistant｜>",
    "hunyuan-vl": "<｜hy_begin▁of▁sentence｜> s <｜hy_place▁holder▁no▁3｜> u <｜hy_User｜> a <｜hy_Assistant｜>v"
    "<｜hy_User｜>",
    "kimi-k2": "<|im_system|>system<|im_middle|> s <|im_end|><|im_user|>user<|im_middle|> u <|im_end|>"
    "<|im_assistant|>assistant<|im_middle|> a <|im_end|><|im_user|>user<|im_middle|>v<|im_end|>"
    "<|im_assistant|>assistant<|im_middle|>",
    "seed_oss": "<seed:bos>system\n s <seed:eos><seed:bos>user\n u <seed:eos><seed:bos>assistant\na<seed:eos>"
    "<seed:bos>user\nv<seed:eos><seed:bos>assistant\n",
    "grok-2": "System: s<|separator|>\n\nHuman: u<|separator|>\n\nAssistant:  a <|separator|>\n\nHuman: v"
    "<|separator|>\n\nAssistant:",
    "pangu-embedded": "[unused9]系统： s [unused10][unused9]用户： u [unused10][unused9]助手： a [unused10]"
    "[unused9]用户：v[unused10][unused9]助手：",
    "solar-open": "<|begin|>system<|content|> s <|end|><|begin|>user<|content|> u <|end|><|begin|>assistant"
    "<|content|> a <|end|><|begin|>user<|content|>v<|end|><|begin|>assistant",
}
"""What llama-server makes of them, too (tests/differential)."""


@pytest.mark.parametrize("name", NAMED_TEMPLATES)
def test_a_name_is_its_template(name: str) -> None:
    assert ChatTemplate(template_of(name)).render(MESSAGES) == RENDERED[name]


@pytest.mark.parametrize(
    ("name", "rendered"),
    [
        ("chatml", "<|im_start|>wizard\n<|im_end|>\n"),
        ("llama2", "[INST] </s>"),
        ("mistral-v1", " [INST]  </s>"),
        ("command-r", ""),
        ("bailing2", "<role>SYSTEM</role>detailed thinking off<|role_end|><role>WIZARD</role><|role_end|>"),
        ("pangu-embedded", "[unused9]系统：[unused10]"),
        ("kimi-k2", "<|im_end|>"),
    ],
)
def test_a_role_that_a_family_does_not_know(name: str, rendered: str) -> None:
    template = ChatTemplate(template_of(name))
    assert template.render([{"role": "wizard", "content": None}], add_generation_prompt=False) == rendered


@pytest.mark.parametrize("text", ["This is not a chat template, it is", "{{ messages }}", "{{x}}"])
def test_other_text_is_a_template(text: str) -> None:
    assert template_of(text) == text


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="--chat-template lama3 is neither a template nor one of the names chatml"):
        template_of("lama3")
