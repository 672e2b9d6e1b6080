"""Stop strings: any way to cut a text into pieces gives what the whole text gives."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokens.stop_strings import StopStrings

few_letters = st.text("ab\n", max_size=24)
"""So that beginnings of stop strings are common."""


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Return all text sent, and the stop string reached."""
    finder = StopStrings(stops)
    sent = ""
    for piece in pieces:
        text, hit = finder.push(piece)
        sent += text
        if hit is not None:
            return sent, hit
    return sent + finder.flush(), None


def first_complete(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: the earliest end; of equal ends the longest stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500)
@given(stops=st.lists(st.text("ab\n", max_size=5), max_size=4), text=few_letters, draw=st.data())
def test_any_split_gives_the_one_shot_cut(stops: list[str], text: str, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    assert run(stops, pieces) == first_complete(stops, text)


@settings(max_examples=300)
@given(stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), text=few_letters)
def test_no_text_is_held_back_without_need(stops: list[str], text: str) -> None:
    finder = StopStrings(stops)
    sent = ""
    for seen in range(1, len(text) + 1):
        safe, hit = finder.push(text[seen - 1])
        sent += safe
        if hit is not None:
            return
        held = text[len(sent) : seen]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_with_one_stop_string_the_cut_is_at_its_first_occurrence() -> None:
    assert run(["</s>"], ["a</", "s></s>"]) == ("a", "</s>")


def test_of_stop_strings_that_begin_together_the_shorter_is_complete_first() -> None:
    assert run(["abc", "ab"], ["xabc"]) == ("x", "ab")


def test_of_stop_strings_that_end_together_the_longer_counts() -> None:
    assert run(["c", "abc"], ["xab", "c"]) == ("x", "abc")


def test_the_beginning_of_a_stop_string_is_held_until_it_is_none() -> None:
    finder = StopStrings(["\n\nUser:"])

    assert finder.push("Hi.\n") == ("Hi.", None)
    assert finder.push("\nUse") == ("", None)
    assert finder.push("ful") == ("\n\nUseful", None)
    assert finder.flush() == ""


def test_flush_returns_the_held_text_once() -> None:
    finder = StopStrings(["abc"])
    finder.push("xab")

    assert (finder.flush(), finder.flush()) == ("ab", "")


def test_a_stop_string_does_not_span_a_flush() -> None:
    finder = StopStrings(["abc"])
    finder.push("ab")
    finder.flush()

    assert finder.push("c") == ("c", None)


def test_without_stop_strings_text_passes_through() -> None:
    assert StopStrings(["", ""]).push("anything") == ("anything", None)


def test_text_after_a_hit_is_our_bug() -> None:
    finder = StopStrings(["a"])
    finder.push("a")

    with pytest.raises(AssertionError):
        finder.push("b")


def test_a_huge_stop_string_costs_a_token_no_more_than_a_short_one() -> None:
    stop = "a" * 100_000 + "b"
    finder = StopStrings([stop])
    start = time.perf_counter()
    for _ in range(2000):
        finder.push("aaaa")

    # 8,000 characters: about 1 ms. Comparing prefixes anew for every piece would take minutes.
    assert time.perf_counter() - start < 5.0
