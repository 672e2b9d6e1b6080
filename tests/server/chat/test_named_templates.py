"""Chat templates by name."""

import pytest

from model.chat_template import ChatTemplate
from server.chat.named_templates import NAMED_TEMPLATES, template_of

MESSAGES: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi there "},
    {"role": "assistant", "content": None},
]
_TURN, _END = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
RENDERED = {
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi there <|im_end|>\n"
    "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n",
    "command-r": f"{_TURN}<|SYSTEM_TOKEN|>Be brief.{_END}{_TURN}<|USER_TOKEN|>Hi there{_END}"
    f"{_TURN}<|CHATBOT_TOKEN|>{_END}{_TURN}<|CHATBOT_TOKEN|>",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi there<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}


@pytest.mark.parametrize("name", NAMED_TEMPLATES)
def test_a_name_is_its_template(name: str) -> None:
    template = ChatTemplate(template_of(name), special_tokens={})
    assert template.render(MESSAGES) == RENDERED[name]


@pytest.mark.parametrize("text", ["This is not a chat template, it is", "{{ messages }}", "{{x}}"])
def test_other_text_is_a_template(text: str) -> None:
    assert template_of(text) == text


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="--chat-template monarch is neither a template nor one of the names chatml"):
        template_of("monarch")
