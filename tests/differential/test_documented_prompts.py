"""Which differences between prompts pass for documented ones."""

import pytest

from model.tokens.chat_template import ChatTemplate
from tests.differential.documented_prompts import DOCUMENTED, REFUSED, Prompts, is_documented
from tests.differential.templates import CONVERSATIONS
from tests.load.demo_server import ROOT

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("model", "conversation", "ours", "peers"),
    [
        ("x", "variables", "a<think>\n</think>", "a<think>\n"),
        ("Kimi-K2-Instruct", "an answer to continue", "aOnce", "a<think></think>Once"),
        ("unsloth-mistral-Devstral-Small-2507", "thoughts", "[/INST]Hi.a[/INST]", "[/INST]a[/INST]"),
        ("StepFun3.5-Flash", "an answer to continue", "a<think>\n</think>\nb", "a<think></think>b"),
        ("deepseek-ai-DeepSeek-V4", "an answer to continue", "a<think></think>b", "a</think>b"),
        ("GLM-4.7-Flash", "an answer to continue", "a</think>b", "a</think><think></think>b"),
        ("upstage-Solar-Open-100B", "an answer to continue", "assistant<|content|>b", "assistantb"),
        ("microsoft-Phi-3.5-mini-instruct", "an answer to continue", "<|assistant|>b", "<|im_end|>assistant|>b"),
        ("llama-cpp-rwkv-world", "without a generation prompt", "a", "aAssistant:"),
        ("x", "a conversation that ends with an answer", "Once upon<|im_end|>", "Once upon"),
        ("x", "thoughts that go on", REFUSED, "a"),
        ("LFM2.5-8B-A1B", "parts", "onetwo", "one\ntwo"),
        ("mistralai-Ministral-3-14B-Reasoning-2512", "an assistant without content", REFUSED, "a"),
        ("google-gemma-4-31B-it", "no messages", "a", REFUSED),
        ("x", "tools", "You have these tools, each with a JSON schema of its arguments:", "a"),
        ("x", "calls without tools", "Result of the tool: 5", "a"),
        ("google-gemma-4-31B-it-interleaved", "two calls", "a", "b"),
    ],
)
def test_a_documented_difference_is_told_from_others(model: str, conversation: str, ours: str, peers: str) -> None:
    template = ChatTemplate(PLAIN)
    assert is_documented(Prompts(model, template, CONVERSATIONS[conversation], ours, peers))
    assert not is_documented(Prompts(model, template, CONVERSATIONS["one message"], ours, peers))
    assert not is_documented(Prompts("other", template, CONVERSATIONS[conversation], "other", peers))


def test_every_difference_that_passes_has_words_in_the_documentation() -> None:
    documentation = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert [words for words in DOCUMENTED if words not in documentation] == []
