"""Chat templates that --chat-template knows by name, as llama-server does: written here, after what each model family
was trained with. A single word is a name; anything else is a template itself.
"""

import re

_NAME = re.compile(r"[\w.-]+")

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LLAMA3 = (
    "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ (message.content or '') | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
_COMMAND_R = (
    "{% set roles = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}"
    "{% for message in messages %}<|START_OF_TURN_TOKEN|><|{{ roles.get(message.role, 'USER') }}_TOKEN|>"
    "{{ (message.content or '') | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
NAMED_TEMPLATES = {"chatml": _CHATML, "command-r": _COMMAND_R, "llama3": _LLAMA3}


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
