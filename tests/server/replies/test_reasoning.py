"""Thinking told from what follows it."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.replies.parts import Content, Part, Reasoning, joined
from server.replies.reasoning import ReasoningReader, ReasoningTags, tags_in, thinking_span
from tests.server.chat_templates import HERMES_THINKING, PLAIN

TAGS = ReasoningTags("<think>", "</think>")


def read(pieces: Sequence[str], *, is_begun: bool = False, keeps_tags: bool = False) -> list[Part]:
    """Read a text in pieces."""
    reader = ReasoningReader(TAGS, is_begun=is_begun, keeps_tags=keeps_tags)
    return joined([*(part for piece in pieces for part in reader.push(piece)), *reader.flush()])


@pytest.mark.parametrize(
    ("text", "is_begun", "parts"),
    [
        ("<think>\nhm\n</think>\n\nYes.\n", False, [Reasoning("hm"), Content("Yes.\n")]),
        ("\n <think>a  b</think>", False, [Reasoning("a  b")]),
        ("hm </think> Yes.", True, [Reasoning("hm"), Content("Yes.")]),
        ("\nhm", True, [Reasoning("hm")]),
        ("hm\n</th", True, [Reasoning("hm\n</th")]),
        ("</think>Yes.", True, [Content("Yes.")]),
        ("<think></think>Yes. <think>not thought</think>", False, [Content("Yes. <think>not thought</think>")]),
        (" Yes. <think>no</think>", False, [Content(" Yes. <think>no</think>")]),
        ("<thi", False, [Content("<thi")]),
        (" \n", False, [Content(" \n")]),
        ("", False, []),
    ],
)
def test_thinking_comes_first_and_ends_with_its_tag(text: str, is_begun: bool, parts: list[Part]) -> None:
    assert read([text], is_begun=is_begun) == parts
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    span = thinking_span(text, TAGS, is_begun=is_begun)
    assert text[span.start : span.stop].strip() == thought


SCRAPS = st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "th", "a", " ", "\n"]), max_size=10).map("".join)


@given(SCRAPS, st.booleans(), st.lists(st.integers(1, 4), max_size=8))
@settings(deadline=None)
def test_how_a_text_is_cut_changes_nothing(text: str, is_begun: bool, lengths: list[int]) -> None:
    pieces, rest = [], text
    for length in lengths:
        pieces.append(rest[:length])
        rest = rest[length:]
    assert read([*pieces, rest], is_begun=is_begun) == read([text], is_begun=is_begun)


def test_pieces_are_shown_as_soon_as_they_are_certain() -> None:
    reader = ReasoningReader(TAGS, is_begun=False)
    pieces = ["<think>", "\n", "one", " two", "\n", "</thi", "nk>", "\n\n", "Yes", "."]
    assert [joined(reader.push(piece)) for piece in pieces] == [
        *([], [], [Reasoning("one")], [Reasoning(" two")], [], [], [], [], [Content("Yes")], [Content(".")])
    ]


@given(SCRAPS, st.booleans())
@settings(deadline=None)
def test_the_content_may_keep_all_of_the_text(text: str, is_begun: bool) -> None:
    parts = read([text], is_begun=is_begun, keeps_tags=True)
    assert "".join(part.text for part in parts if isinstance(part, Content)) == text
    thoughts = [part for part in read([text], is_begun=is_begun) if isinstance(part, Reasoning)]
    assert [part for part in parts if isinstance(part, Reasoning)] == thoughts


def test_tags_are_those_of_the_template() -> None:
    assert tags_in(HERMES_THINKING) == TAGS
    assert tags_in("[THINK]{{ thoughts }}[/THINK]") == ReasoningTags("[THINK]", "[/THINK]")
    assert tags_in(PLAIN) is None


def test_what_ends_thinking_beside_its_tag_belongs_to_the_rest() -> None:
    text = "hm [call] so</think>"
    span = thinking_span(text, TAGS, is_begun=True, interrupts=["[call]"])
    assert text[span.start : span.stop] == "hm "
    reader = ReasoningReader(TAGS, is_begun=True, interrupts=["[call]"])
    parts = joined([*(part for character in text for part in reader.push(character)), *reader.flush()])
    assert parts == [Reasoning("hm"), Content("[call] so</think>")]
