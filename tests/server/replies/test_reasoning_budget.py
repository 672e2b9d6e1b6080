"""Thinking ends where its budget does: token by token, with a constraint beside it, and over HTTP."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from model.constraints.constraint import ConstraintCompiler, ConstraintText, Syntax
from model.constraints.thinking import Thinking
from server.chat.tool_constraint import tool_constraint
from server.replies.reasoning import ReasoningTags
from server.replies.reasoning_budget import BudgetFilter, ReasoningBudget
from server.reply import ReplyForm
from server.tools.fields import Tool, ToolUse
from server.tools.formats import HERMES, QWEN_CODER
from tests.server.chat_templates import HERMES_THINKING, PLAIN, THINKING_BEGUN
from tests.server.constrained import SamplingExecutor
from tests.server.fakes import VOCAB_SIZE, byte_tokenizer, fake_engine, fake_limits, fake_settings
from tests.server.live import LiveServer

TAGS = ReasoningTags("<think>", "</think>")
USER = {"role": "user", "content": "a"}


def generate(token_filter: BudgetFilter, wishes: str) -> str:
    """Return what a model says that wishes for these letters, as far as it may."""
    said = bytearray()
    for wish in wishes.encode():
        allowed = token_filter.allowed()
        assert len(allowed) == VOCAB_SIZE
        token_id = wish if allowed[wish] else next(each for each, is_allowed in enumerate(allowed) if is_allowed)
        said.append(token_id)
        token_filter.accept(token_id)
    return said.decode()


@pytest.mark.parametrize(
    ("budget", "wishes", "said"),
    [
        (ReasoningBudget(3, TAGS, is_begun=True), "abcdefghijkYes", "abc</think>Yes"),
        (ReasoningBudget(0, TAGS, is_begun=True), "abcdefghYes", "</think>Yes"),
        (ReasoningBudget(3, TAGS, is_begun=False), "\n<think>abcdefghijkYes", "\n<think>abc</think>Yes"),
        (ReasoningBudget(3, TAGS, is_begun=False), "Yes, and more", "Yes, and more"),
        (ReasoningBudget(3, TAGS, is_begun=False), "<thin air", "<thin air"),
        (ReasoningBudget(20, TAGS, is_begun=True), "ab</think>Yes, and much more", "ab</think>Yes, and much more"),
        (ReasoningBudget(2, TAGS, is_begun=True, message=" So"), "abcdefghijklmYes", "ab So</think>Yes"),
    ],
)
def test_the_end_tag_is_forced_after_so_many_tokens(budget: ReasoningBudget, wishes: str, said: str) -> None:
    assert generate(budget.begin(byte_tokenizer(), None), wishes) == said


def test_the_text_may_not_end_while_the_tag_is_forced() -> None:
    token_filter = ReasoningBudget(1, TAGS, is_begun=True).begin(byte_tokenizer(), None)
    can_end = []
    for wish in b"a</think>":
        can_end.append(token_filter.can_end())
        token_filter.accept(wish)
    assert can_end == [True, *[False] * 8]
    assert token_filter.can_end()


def test_a_constraint_holds_beside_it() -> None:
    tokenizer = byte_tokenizer()
    form = ReplyForm(reasoning=TAGS, is_reasoning_begun=True, calls=HERMES)
    wanted = tool_constraint(form, ToolUse((Tool("f", "", {}),), "required"), tokenizer)
    assert wanted is not None
    inner = ConstraintCompiler().compile(tokenizer, wanted.text).result().begin()
    token_filter = ReasoningBudget(2, TAGS, is_begun=True).begin(tokenizer, inner)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert generate(token_filter, "ab12345678" + call) == "ab</think>" + call
    assert token_filter.can_end()


def test_the_tag_is_forced_behind_a_character_that_is_whole() -> None:
    tokenizer = byte_tokenizer()
    text = ConstraintText(Syntax.REGEX, "[0-9]", thinking=Thinking("<think>", "</think>", is_begun=True))
    token_filter = ReasoningBudget(1, TAGS, is_begun=True).begin(
        tokenizer, ConstraintCompiler().compile(tokenizer, text).result().begin()
    )
    assert generate(token_filter, "\u20acxxxxxxxx7") == "\u20ac</think>7"


@pytest.mark.parametrize(
    ("use", "wishes", "said"),
    [
        (ToolUse((Tool("f", "", {}),)), "ab<tool_call><function=f></function></tool_call>", None),
        (ToolUse((Tool("f", "", {}),)), "ab<tool_call><function=g", "ab<tool_call><function=f"),
        (ToolUse((Tool("f", "", {}),), "required"), "ab<tool_call>", "ab<tool_call\0"),
    ],
)
def test_a_call_in_the_middle_of_thinking_ends_it_unless_one_must_come(
    use: ToolUse, wishes: str, said: str | None
) -> None:
    tokenizer = byte_tokenizer()
    form = ReplyForm(reasoning=TAGS, is_reasoning_begun=True, calls=QWEN_CODER)
    wanted = tool_constraint(form, use, tokenizer)
    assert wanted is not None
    inner = ConstraintCompiler().compile(tokenizer, wanted.text).result().begin()
    budget = ReasoningBudget(20, TAGS, is_begun=True, interrupts=QWEN_CODER.interrupts)
    assert generate(budget.begin(tokenizer, inner), wishes) == (said or wishes)


def serving(template: str, budget: int = -1) -> LiveServer:
    """Return a server of a random model."""
    limits = replace(fake_limits(), num_blocks=1024, max_context=4096)
    settings = fake_settings().model_copy(update={"reasoning_budget": budget})
    return LiveServer(
        lambda settings: fake_engine(SamplingExecutor(), settings, limits=limits, chat_template=template), settings
    )


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client of a model that thinks in every reply."""
    with serving(THINKING_BEGUN) as server, server.client() as opened:
        yield opened


def message(client: httpx.Client, **fields: object) -> dict[str, Any]:
    """Return the message of an answer."""
    body = {"messages": [USER], "max_tokens": 60, "ignore_eos": True, "cache_prompt": False, **fields}
    answer: dict[str, Any] = client.post("/v1/chat/completions", json=body).json()
    found: dict[str, Any] = answer["choices"][0]["message"]
    return found


@pytest.mark.parametrize("field", ["reasoning_budget_tokens", "thinking_budget_tokens"])
def test_a_request_bounds_its_thinking(client: httpx.Client, field: str) -> None:
    free, bound = message(client), message(client, **{field: 5})
    assert not free["content"]
    assert bound["content"]
    assert free["reasoning_content"].startswith(bound["reasoning_content"].rstrip("\ufffd"))  # cut in a character
    inline = message(client, reasoning_format="none", **{field: 5})["content"]
    assert "</think>" in inline


def test_a_message_bounds_its_thinking(client: httpx.Client) -> None:
    body = {"messages": [USER], "max_tokens": 60, "ignore_eos": True}
    answer = client.post("/v1/messages", json=body | {"thinking": {"type": "enabled", "budget_tokens": 5}}).json()
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    without = client.post("/v1/messages", json=body | {"thinking": {"type": "disabled"}}).json()
    assert [block["type"] for block in without["content"]] == ["text"]


def test_the_setting_bounds_thinking_unless_a_request_does() -> None:
    with serving(THINKING_BEGUN, budget=0) as server, server.client() as client:
        assert "reasoning_content" not in message(client)
        assert message(client, reasoning_budget_tokens=5)["reasoning_content"]


def test_a_budget_means_nothing_to_a_model_that_does_not_think() -> None:
    with serving(PLAIN) as server, server.client() as client:
        assert message(client, reasoning_budget_tokens=0) == message(client)


FORMAT = {
    "type": "json_object",
    "schema": {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("field", [{"response_format": FORMAT}, {"grammar": 'root ::= "{" "\\"ok\\": true}"'}])
@pytest.mark.parametrize("template", [THINKING_BEGUN, HERMES_THINKING])
def test_a_form_of_the_reply_begins_behind_thinking(template: str, field: dict[str, object]) -> None:
    with serving(template) as server, server.client() as client:
        thought = message(client, ignore_eos=False, reasoning_budget_tokens=3, **field)
        without = message(client, ignore_eos=False, chat_template_kwargs={"enable_thinking": False}, **field)
        inline = message(client, ignore_eos=False, reasoning_format="none", **field)
    assert set(json.loads(thought["content"])) == {"ok"}
    assert ("reasoning_content" in thought) is (template == THINKING_BEGUN)
    for shown in (without, inline):
        assert set(json.loads(shown["content"])) == {"ok"}
        assert "reasoning_content" not in shown


def test_the_other_dialects_think_before_their_form() -> None:
    with serving(THINKING_BEGUN, budget=3) as server, server.client() as client:
        form = FORMAT | {"type": "json_schema", "name": "x"}
        body: dict[str, object] = {"input": "a", "text": {"format": form}, "max_output_tokens": 99}
        response = client.post("/v1/responses", json=body).json()
        body = {"messages": [USER], "max_tokens": 99, "output_format": form}
        blocks = client.post("/v1/messages", json=body).json()["content"]
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert set(json.loads(response["output"][1]["content"][0]["text"])) == {"ok"}
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert set(json.loads(blocks[1]["text"])) == {"ok"}


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_lazy_constraint_finds_no_trigger_in_thinking(is_begun: bool) -> None:
    tokenizer = byte_tokenizer()
    form = ReplyForm(reasoning=TAGS, calls=HERMES)
    wanted = tool_constraint(form, ToolUse((Tool("f", "", {}),)), tokenizer)
    assert wanted is not None
    constraint = ConstraintCompiler().compile(tokenizer, wanted.text).result()
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    start = "" if is_begun else "<think>"
    for thoughts in (f"{start}so <tool_call>nothing</think>\n\n", "" if not is_begun else "</think>"):
        budget = ReasoningBudget(None, TAGS, is_begun, is_inner_blind=True)
        token_filter = budget.begin(tokenizer, constraint.begin())
        assert generate(token_filter, thoughts + call) == thoughts + call
        assert not token_filter.allowed()[ord("x")]


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/v1/chat/completions", {"reasoning_budget_tokens": -2}, "reasoning_budget_tokens"),
        ("/v1/chat/completions", {"reasoning_budget_tokens": "5"}, "reasoning_budget_tokens"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ("/v1/messages", {"reasoning_budget_tokens": 5}, "reasoning_budget_tokens"),
        ("/completion", {"prompt": "a", "reasoning_budget_tokens": 5}, "reasoning_budget_tokens"),
    ],
)
def test_what_is_no_budget_is_named(client: httpx.Client, path: str, fields: dict[str, object], field: str) -> None:
    response = client.post(path, json={"messages": [USER], "max_tokens": 5, **fields})
    assert response.status_code == 400
    assert f"Field '{field}'" in response.json()["error"]["message"]
