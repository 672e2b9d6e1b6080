"""Replies with channels: read whatever way they are cut, constrained in their messages, and over HTTP."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.constraints.constraint import ConstraintCompiler
from model.tokens.chat_template import ChatTemplate
from server.chat.prompt import RenderedChat, render_chat
from server.chat.tool_constraint import tool_constraint
from server.harmony import HarmonyReader
from server.replies.parts import Reply
from server.replies.reasoning import HARMONY_TAGS
from server.reply import ReplyForm
from server.schemas import ChatFields, parse
from server.tools.fields import Tool, ToolUse
from server.tools.formats import HARMONY as FORM
from server.tools.formats import format_of
from tests.server.chat_templates import HARMONY
from tests.server.constrained import SamplingExecutor
from tests.server.fakes import FakeExecutor, byte_tokenizer, fake_engine, fake_limits, fake_settings, says
from tests.server.live import LiveServer, frames

ANALYSIS, FINAL, START = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|start|>assistant"
CALL_HEADERS = (
    " to=functions.NAME<|channel|>commentary json<|message|>",
    " to=functions.NAME<|channel|>commentary <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.NAME<|message|>",
)
USER = {"role": "user", "content": "a"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}},
}


def read(pieces: Sequence[str], begun: str = "", **options: bool) -> Reply:
    """Read a text in pieces."""
    defaults = {"splits_reasoning": True, "keeps_reasoning": False, "reads_calls": True}
    reader, reply = HarmonyReader(begun, **(defaults | options)), Reply()
    for part in [*(part for piece in pieces for part in reader.push(piece)), *reader.flush()]:
        reply.add(part)
    return reply


def calls(reply: Reply) -> list[tuple[str, str]]:
    """Return the calls of a reply, whose random ids do not count."""
    return [(call.name, call.arguments) for call in reply.calls]


texts = st.text("ab <|>{}\n=:", max_size=12)
messages = st.lists(
    st.one_of(
        st.tuples(st.just("analysis"), texts),
        st.tuples(st.sampled_from(["final", "commentary"]), texts),
        st.tuples(st.sampled_from(CALL_HEADERS), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2)),
    ),
    max_size=4,
)


@settings(deadline=None)
@given(messages, st.data())
def test_messages_are_read_as_they_were_meant(written: list[tuple[str, Any]], data: st.DataObject) -> None:
    expected, bodies = Reply(), []
    called = []
    for kind, body in written:
        if kind in CALL_HEADERS:
            bodies.append(kind.replace("NAME", "f") + json.dumps(body))
            called.append(("f", json.dumps(body)))
        else:
            bodies.append(f"<|channel|>{kind}<|message|>{body}")
            expected.reasoning += body if kind == "analysis" else ""
            expected.content += "" if kind == "analysis" else body
    text = f"<|end|>{START}".join(bodies)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    reply = read(pieces)
    assert (reply.reasoning, reply.content, calls(reply)) == (expected.reasoning, expected.content, called)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("Plain text.", "", "Plain text."),
        ("t", "", "t"),
        (f"{ANALYSIS}hm<|end|>{START}<|chan", "hm", ""),
        (f"{ANALYSIS}hm<|e", "hm<|e", ""),
        (f"{FINAL}So<|end|> and more", "", "Soand more"),
        (" to=browser.search<|channel|>commentary<|message|>{}", "", "{}"),
        (300 * "<|channel|>", "", 300 * "<|channel|>"),
    ],
)
def test_what_is_no_message_is_content(text: str, reasoning: str, content: str) -> None:
    assert (read([text]).reasoning, read([text]).content) == (reasoning, content)


def test_thinking_can_stay_in_the_content() -> None:
    text = f"{ANALYSIS}hm<|end|>{START}{FINAL}So."
    assert read([text], splits_reasoning=False) == Reply(content=f"{ANALYSIS}hm<|end|>So.")
    assert read([text], keeps_reasoning=True) == Reply("hm", f"{ANALYSIS}hm<|end|>So.")
    assert read(["ab"], begun=FINAL) == Reply(content="ab")


def test_calls_that_nobody_asked_for_are_content() -> None:
    text = " to=functions.f<|channel|>commentary json<|message|>{}"
    assert read([text], reads_calls=False) == Reply(content="{}")


def render(**body: object) -> RenderedChat:
    """Render the body of a request."""
    return render_chat(ChatTemplate(HARMONY), parse(ChatFields, {"messages": [USER], **body}), fake_settings())


def test_a_template_shows_that_its_replies_have_channels() -> None:
    assert format_of(ChatTemplate(HARMONY)) == FORM
    rendered = render()
    assert rendered.form is not None
    assert rendered.form.has_channels
    assert rendered.prompt.endswith(START)


def test_a_message_before_calls_has_its_thinking_alone() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": true}'}}
    said = {"role": "assistant", "content": "So:", "reasoning_content": "hm", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c", "content": "7"}
    shown = render(messages=[USER, said, result], tools=[TOOL]).prompt
    assert f"{START}{ANALYSIS}hm<|end|>{START} to=functions.f<|channel|>commentary json<|message|>" in shown
    assert "So:" not in shown


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        ({"content": "So"}, Reply(content="x")),
        ({"content": "", "reasoning_content": "hm"}, Reply(reasoning="x")),
        ({"content": "So", "reasoning_content": "hm"}, Reply(content="x")),
    ],
)
def test_a_reply_that_was_begun_goes_on_in_its_message(message: dict[str, object], reply: Reply) -> None:
    rendered = render(messages=[USER, {"role": "assistant", **message}])
    assert rendered.form is not None
    assert read(["x"], begun=rendered.form.begun) == reply


COMPILER = ConstraintCompiler()
USE = ToolUse((Tool("f", "", TOOL["function"]["parameters"]), Tool("g", "", {})))
GOOD = '{"a": true}'


@pytest.mark.parametrize(
    ("choice", "text", "is_whole"),
    [
        *(("required", header.replace("NAME", "f") + GOOD, True) for header in CALL_HEADERS),
        *(
            ("required", f"{ANALYSIS}hm<|end|>{START}{header.replace('NAME', 'g')}{{}}", True)
            for header in CALL_HEADERS
        ),
        ("required", f"{FINAL}So.", False),
        ("required", CALL_HEADERS[0].replace("NAME", "h") + "{}", False),
        ("required", CALL_HEADERS[0].replace("NAME", "f") + "{}", False),
        ("auto", f"{ANALYSIS}hm<|end|>{START}{FINAL}So.", True),
        ("auto", f"{ANALYSIS}hm<|end|>{START}{CALL_HEADERS[0].replace('NAME', 'f')}{GOOD}", True),
        ("auto", f"{ANALYSIS}hm<|end|>{START}{CALL_HEADERS[2].replace('NAME', 'f')}{GOOD}", True),
        ("auto", f"{ANALYSIS}hm<|end|>{START}{CALL_HEADERS[0].replace('NAME', 'f')}{{}}", False),
        ("auto", CALL_HEADERS[2].replace("NAME", "h"), False),
    ],
)
def test_calls_are_constrained(choice: Any, text: str, is_whole: bool) -> None:
    tokenizer = byte_tokenizer()
    form = ReplyForm(reasoning=HARMONY_TAGS, calls=FORM, tools=USE.tools, has_channels=True)
    wanted = tool_constraint(form, replace(USE, choice=choice), tokenizer)
    assert wanted is not None
    token_filter = COMPILER.compile(tokenizer, wanted.text).result().begin()
    for token_id in text.encode():
        if not token_filter.allowed()[token_id]:
            assert not is_whole
            return
        token_filter.accept(token_id)
    assert token_filter.can_end() is is_whole


@pytest.fixture(scope="module")
def talking() -> Iterator[httpx.Client]:
    """A client of a model that thinks, and calls a tool."""
    text = f"{ANALYSIS}hm<|end|>{START}{CALL_HEADERS[1].replace('NAME', 'f')}{GOOD}"
    limits = replace(fake_limits(), num_blocks=1024, max_context=4096)
    with (
        LiveServer(
            lambda settings: fake_engine(FakeExecutor(says(text)), settings, limits, chat_template=HARMONY)
        ) as server,
        server.client() as client,
    ):
        yield client


@pytest.mark.parametrize("stream", [True, False])
def test_a_chat_has_its_parts(talking: httpx.Client, stream: bool) -> None:
    body = {"messages": [USER], "tools": [TOOL], "max_tokens": 300, "stream": stream}
    with talking.stream("POST", "/v1/chat/completions", json=body) as response:
        answers = list(frames(response)) if stream else [json.loads(response.read())]
    parts = [each["choices"][0]["delta" if stream else "message"] for each in answers]
    assert "".join(part.get("reasoning_content", "") for part in parts) == "hm"
    assert "".join(part.get("content") or "" for part in parts) == ""
    called = [call["function"] for part in parts for call in part.get("tool_calls", [])]
    assert "".join(call["arguments"] for call in called) == GOOD
    assert called[0]["name"] == "f"
    assert answers[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_form_of_the_answer_holds_in_the_final_message() -> None:
    limits = replace(fake_limits(), num_blocks=1024, max_context=4096)
    schema = TOOL["function"]["parameters"] | {"type": "object", "additionalProperties": False}
    body = {"messages": [USER], "max_tokens": 300, "response_format": {"type": "json_object", "schema": schema}}
    tools = {"messages": [USER], "max_tokens": 300, "tools": [TOOL], "tool_choice": "required"}
    with (
        LiveServer(lambda settings: fake_engine(SamplingExecutor(), settings, limits, chat_template=HARMONY)) as server,
        server.client() as client,
    ):
        for fields in ({"reasoning_budget_tokens": 3}, {"reasoning_format": "none"}):
            [choice] = client.post("/v1/chat/completions", json=body | fields).json()["choices"]
            assert set(json.loads(choice["message"]["content"])) == {"a"}
        both = body | {"tools": [TOOL], "reasoning_budget_tokens": 3, "seed": 1}
        [choice] = client.post("/v1/chat/completions", json=both).json()["choices"]
        message = choice["message"]
        written = message["tool_calls"][0]["function"]["arguments"] if "tool_calls" in message else message["content"]
        assert set(json.loads(written)) == {"a"}
        [choice] = client.post("/v1/chat/completions", json=tools | {"reasoning_budget_tokens": 3}).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"a"}
