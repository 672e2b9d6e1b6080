"""Calls of tools in text: what each family writes is read as it was meant, however the text is cut."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.replies.parts import CallArguments, CallStart, Content, Part, Reply, joined
from server.tools.formats import GEMMA_4, GENERIC, HERMES, LFM2, LLAMA, MISTRAL, MISTRAL_NAMED, CallFormat
from server.tools.parser import ToolCallReader
from tests.server.tools.families import FAMILIES, NAMES, TOOLS, Family

FORMS = tuple(family.form for family in FAMILIES.values())


def read(form: CallFormat, pieces: Sequence[str]) -> list[Part]:
    """Read a text in pieces."""
    reader = ToolCallReader(form, TOOLS)
    return joined([*(part for piece in pieces for part in reader.push(piece)), *reader.flush()])


def without_ids(parts: Sequence[Part]) -> list[object]:
    """Return the parts, whose random ids do not count."""
    return [(part.index, part.name) if isinstance(part, CallStart) else part for part in parts]


def outcome(form: CallFormat, text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the content and the calls of a text."""
    reply = Reply()
    for part in read(form, [text]):
        reply.add(part)
    return reply.content, [(call.name, call.arguments) for call in reply.calls]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=6), VALUES, max_size=3)
TEXTS = st.text('ab \n"\\{}[]</>é\U0001f600', max_size=12)
TYPED_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "kind": st.sampled_from(["a", "b"]),
        "count": st.integers(),
        "flag": st.booleans() | st.none(),
        "list": st.lists(VALUES, max_size=3),
        "tree": OBJECTS,
        "free": st.sampled_from(["word", "two words", True, 5, [1, "x"], {"a": None}]),
    },
)
CONTENTS = st.text("ab {}[]<>\"'\n", max_size=12).map(lambda text: "x" + text.strip() + "." if text else "")


FREE = st.lists(st.tuples(st.sampled_from(NAMES), OBJECTS), max_size=3).map(tuple)
TYPED = st.lists(st.tuples(st.sampled_from(NAMES), TYPED_ARGUMENTS), max_size=3).map(tuple)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_what_a_family_writes_is_read_as_it_was_meant(family: Family, data: st.DataObject) -> None:
    """Cut anywhere."""
    content = data.draw(CONTENTS)
    written = data.draw(TYPED if family.is_tagged or family.has_bare_keys else FREE)
    has_marker = bool(family.form.trigger)
    text = content + family.write(written) if has_marker or not written else family.write(written)
    reply = Reply()
    for part in read(family.form, cuts(text, data)):
        reply.add(part)
    assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == list(written)
    assert reply.content == ("" if written and not has_marker else content)


def cuts(text: str, data: st.DataObject) -> list[str]:
    """Return a text in pieces, cut anywhere."""
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    ends = [*places, len(text)]
    return [text[start:end] for start, end in zip([0, *places], ends, strict=True)]


SCRAPS = st.lists(
    st.sampled_from(
        [
            *(
                "<tool_call>",
                "</tool_call>",
                "<tool",
                "[TOOL_CALLS]",
                "[ARGS]",
                "[CALL_ID]",
                "<|python_tag|>",
                "[",
                "]",
            ),
            *('{"name": "sum"', '{"name": "other"', ', "arguments": ', ', "parameters": ', '{"a": [1, "}"]}', "}", "{"),
            *('"x\\"y"', " ", "\n", ",", ";", ":", "7", "sum", "text", '"', "\\"),
        ]
    ),
    max_size=12,
).map("".join)


@given(SCRAPS, st.sampled_from(FORMS), st.data())
@settings(deadline=None, max_examples=300)
def test_how_a_text_is_cut_changes_nothing(text: str, form: CallFormat, data: st.DataObject) -> None:
    assert without_ids(read(form, cuts(text, data))) == without_ids(read(form, [text]))


@given(SCRAPS, st.sampled_from(FORMS))
@settings(deadline=None)
def test_a_text_without_calls_is_kept_whole(text: str, form: CallFormat) -> None:
    content, calls = outcome(form, text)
    assert calls or content == text


def test_arguments_come_piece_by_piece() -> None:
    reader = ToolCallReader(HERMES, TOOLS)
    pieces = ["<tool_", 'call>{"name": "su', 'm", ', '"arguments": {"a"', ": 1", "}", "}</tool_call>"]
    parts = [reader.push(piece) for piece in pieces]
    assert [without_ids(each) for each in parts] == [
        [],
        [],
        [(0, "sum")],
        [CallArguments(0, '{"a"')],
        [CallArguments(0, ": 1")],
        [CallArguments(0, "}")],
        [],
    ]


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, 'Well.\n\n<tool_call>\n{"name": "sum"}</tool_call>', "Well.", [("sum", "{}")]),
        (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "sum"}</tool_call> so', "so", [("sum", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "sum", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("sum", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "unheard_of", "arguments": {}}</tool_call>', "", [("unheard_of", "{}")]),
        (HERMES, '<tool_call>{"name": "sum", "arguments": {"a": [1', "", [("sum", '{"a": [1')]),
        (HERMES, '<tool_call>{"name": 7}', '<tool_call>{"name": 7}', []),
        (HERMES, 'a <tool_call> b <tool_call>{"name": "sum"}', "a <tool_call> b", [("sum", "{}")]),
        (LLAMA, '<|python_tag|>{"name": "sum", "parameters": {}}', "", [("sum", "{}")]),
        (LLAMA, '{"type": "function", "name": "sum", "parameters": {"a": 1}}', "", [("sum", '{"a": 1}')]),
        (LLAMA, '{"name": "sum", "parameters": {}}; {"name": "sum"}', "", [("sum", "{}"), ("sum", "{}")]),
        (LLAMA, '{"name": "unheard_of", "parameters": {}}', '{"name": "unheard_of", "parameters": {}}', []),
        (LLAMA, '<|python_tag|>print("a")', '<|python_tag|>print("a")', []),
        (LLAMA, 'See {"name": "sum"}', 'See {"name": "sum"}', []),
        (GENERIC, '{"name": "sum", "arguments": {"a": 1}}', "", [("sum", '{"a": 1}')]),
        (GENERIC, '{"temperature": 20}', '{"temperature": 20}', []),
        (MISTRAL, 'So: [TOOL_CALLS] [{"name": "sum", "arguments": {}, "id": "123456789"}]', "So:", [("sum", "{}")]),
        (MISTRAL_NAMED, '[TOOL_CALLS]sum[CALL_ID]123456789[ARGS]{"a": 1}', "", [("sum", '{"a": 1}')]),
        (
            LFM2,
            "So: <|tool_call_start|>[sum(a=[1, 'x\\''], b={'c': None}), sum(a=true, b=x), sum()]<|tool_call_end|>",
            "So:",
            [("sum", '{"a": [1, "x\'"], "b": {"c": null}}'), ("sum", '{"a": true, "b": "x"}'), ("sum", "{}")],
        ),
        (
            LFM2,
            '<|tool_call_start|>[{"name": "sum", "arguments": {"a": 1}}]<|tool_call_end|>',
            "",
            [("sum", '{"a": 1}')],
        ),
        (GEMMA_4, "<|tool_call>call:sum{a:[1, x], b: {}}<tool_call|>", "", [("sum", '{"a": [1, "x"], "b": {}}')]),
        (GEMMA_4, "<|tool_call>call:sum{a:" + 99 * "[", 35 * "[", [("sum", '{"a": ' + 64 * "[")]),
        (LFM2, "<|tool_call_start|>[nothing]", "<|tool_call_start|>[nothing]", []),
        (MISTRAL_NAMED, "[TOOL_CALLS]" + 300 * "x", "[TOOL_CALLS]" + 300 * "x", []),
    ],
)
def test_calls_are_told_from_text(form: CallFormat, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert outcome(form, text) == (content, calls)


@pytest.mark.parametrize(
    ("form", "text", "length"), [(HERMES, '<tool_call>{"name": "f"}', 29), (MISTRAL, '[TOOL_CALLS][{"name": "f"}', 9)]
)
def test_ids_have_the_length_that_templates_want(form: CallFormat, text: str, length: int) -> None:
    parts = [part for _ in range(20) for part in read(form, [text])]
    ids = [part.call_id for part in parts if isinstance(part, CallStart)]
    assert {len(each) for each in ids} == {length}
    assert len(set(ids)) == 20


def test_text_without_a_marker_is_shown_at_once() -> None:
    reader = ToolCallReader(HERMES, TOOLS)
    assert [reader.push(piece) for piece in ("a", " ", "b <", "t")] == [[Content("a")], [], [Content(" b")], []]
    assert reader.flush() == [Content(" <t")]
