"""From tokens to text, without HTTP."""

from collections.abc import Sequence

from scheduler.batch import Sample, SamplingParams
from scheduler.events import Finished, FinishReason, TokenSampled
from scheduler.loop import TokenStream
from scheduler.request import Request
from server.generation import Choice
from server.replies.transcript import Piece, Transcript
from server.text_rules import TextRules
from tests.server.fakes import EOS, TURN, base_list


def transcript(
    stop: Sequence[str] = (),
    max_generation_ms: int = 0,
    *,
    eog_ids: Sequence[int] = (EOS,),
    min_new_tokens: int = 0,
    rules: TextRules | None = None,
) -> Transcript:
    """An empty answer to a prompt of three tokens, admitted at 10 s."""
    request = Request(0, (), (1, 2, 3), SamplingParams(), 100, frozenset(eog_ids), min_new_tokens)
    request.admitted_s = 10.0
    rules = rules or TextRules(tuple(stop), max_generation_ms=max_generation_ms)
    return Transcript(Choice(0, 0, request, base_list(), rules), TokenStream(request))


def add(answer: Transcript, tokens: bytes | list[int]) -> list[Piece | None]:
    """Give the answer tokens at 11 s, 12 s, ….."""
    pieces = []
    for token_id in tokens:
        index = answer.num_generated
        pieces.append(answer.add(TokenSampled(0, (), index, Sample(0, token_id), 0.0, 11.0 + index)))
    return pieces


def finish(answer: Transcript, reason: FinishReason) -> Piece | None:
    """End the answer."""
    return answer.finish(Finished(0, (), reason, "", 3, answer.num_generated, 0, 0.0, 99.0))


def state(answer: Transcript) -> tuple[str, FinishReason | None]:
    """What is shown, and why it ended."""
    return answer.text, answer.reason


def texts(pieces: Sequence[Piece | None]) -> list[str | None]:
    """Only the text of the pieces."""
    return [None if piece is None else piece.text for piece in pieces]


def test_a_token_of_plain_text_is_a_piece() -> None:
    answer = transcript()
    assert texts(add(answer, b"ab")) == ["a", "b"]
    assert finish(answer, FinishReason.LIMIT) is None
    assert (answer.text, answer.reason) == ("ab", FinishReason.LIMIT)


def test_held_tokens_come_with_the_text_they_belong_to() -> None:
    answer = transcript()
    _, held, piece = add(answer, b"a\xc3\xa9")
    assert held is None
    assert piece is not None
    assert [sample.token_id for sample in piece.samples] == [0xC3, 0xA9]


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    answer = transcript()
    assert texts(add(answer, b"a\xe2\x82")) == ["a", None, None]
    piece = finish(answer, FinishReason.LIMIT)
    assert piece is not None
    assert (piece.text, len(piece.samples)) == ("\ufffd", 2)


def test_text_that_may_become_a_stop_string_is_held_back() -> None:
    answer = transcript(["abc"])
    assert texts(add(answer, b"xabd")) == ["x", None, None, "abd"]


def test_text_held_back_is_shown_at_the_end() -> None:
    answer = transcript(["abc"])
    add(answer, b"xab")
    assert texts([finish(answer, FinishReason.LIMIT)]) == ["ab"]
    assert answer.text == "xab"


def test_a_stop_string_ends_the_answer_before_it() -> None:
    answer = transcript(["bc"])
    assert texts(add(answer, b"abc")) == ["a", None, None]
    assert (answer.text, answer.reason, answer.stopping_word) == ("a", FinishReason.WORD, "bc")
    assert [sample.token_id for sample in answer.samples] == [ord("a")]
    assert answer.num_generated == 3


def test_a_stop_string_that_the_last_bytes_complete_ends_the_answer() -> None:
    answer = transcript(["\ufffd"])
    add(answer, b"a\xe2")
    assert finish(answer, FinishReason.LIMIT) is None
    assert (answer.text, answer.reason) == ("a", FinishReason.WORD)


def test_an_end_token_is_shown_without_text() -> None:
    answer = transcript()
    assert texts(add(answer, [97, EOS])) == ["a", None]
    piece = finish(answer, FinishReason.EOS)
    assert piece is not None
    assert (piece.text, [sample.token_id for sample in piece.samples]) == ("", [EOS])


def test_times_leave_the_queue_out() -> None:
    answer = transcript()
    add(answer, b"abc")
    assert (answer.prompt_ms, answer.generation_ms) == (1000.0, 2000.0)


def test_an_empty_answer_took_no_time() -> None:
    answer = transcript()
    finish(answer, FinishReason.ABORT)
    assert (answer.prompt_ms, answer.generation_ms, answer.text) == (0.0, 0.0, "")


def test_the_time_for_generation_counts_from_the_first_token_and_ends_the_answer_after_a_new_line() -> None:
    answer = transcript(max_generation_ms=2000)
    assert texts(add(answer, b"a\nb")) == ["a", "\n", "b"]
    assert state(answer) == ("a\nb", None)  # 2 s are not over at 2 s
    assert texts(add(answer, b"c")) == ["c"]
    assert state(answer) == ("a\nbc", FinishReason.LIMIT)


def test_without_a_new_line_there_is_no_limit_and_the_new_line_itself_ends_a_late_answer() -> None:
    answer = transcript(max_generation_ms=2000)
    add(answer, b"abcdef")
    assert state(answer) == ("abcdef", None)
    add(answer, b"\n")
    assert state(answer) == ("abcdef\n", FinishReason.LIMIT)


def test_an_answer_that_is_out_of_time_shows_what_was_held_back() -> None:
    answer = transcript(["xyz"], max_generation_ms=2000)
    assert texts(add(answer, b"\nbcx")) == ["\n", "b", "c", "x"]
    assert state(answer) == ("\nbcx", FinishReason.LIMIT)


def test_a_stop_string_and_the_models_own_end_go_before_the_time_limit() -> None:
    stopped = transcript(["cd"], max_generation_ms=2000)
    add(stopped, b"\nbcd")
    assert state(stopped) == ("\nb", FinishReason.WORD)
    ended = transcript(max_generation_ms=2000)
    add(ended, [*b"\nbc", EOS])
    assert state(ended) == ("\nbc", None)
    finish(ended, FinishReason.EOS)
    assert state(ended) == ("\nbc", FinishReason.EOS)


# How an answer ends beside its limit.


def test_before_min_tokens_no_stop_string_is_looked_for() -> None:
    answer = transcript(["b"], min_new_tokens=2)
    assert texts(add(answer, b"abc")) == ["a", "b", "c"]
    assert add(answer, b"b") == [None]
    assert (answer.text, answer.reason, answer.stopping_word) == ("abc", FinishReason.WORD, "b")


def test_a_stop_string_that_began_before_min_tokens_is_none() -> None:
    answer = transcript(["bc"], min_new_tokens=2)
    assert texts(add(answer, b"abc")) == ["a", "b", "c"]
    assert answer.reason is None


def test_a_stop_string_is_shown_where_that_is_asked_for() -> None:
    answer = transcript(rules=TextRules(("bc",), keeps_stop=True))
    assert texts(add(answer, b"abc")) == ["a", None, "bc"]
    assert (answer.text, answer.reason, answer.stopping_word) == ("abc", FinishReason.WORD, "bc")
    assert [sample.token_id for sample in answer.samples] == list(b"abc")


def test_a_token_that_ends_the_answer_is_shown_where_that_is_asked_for() -> None:
    for keeps_stop, text in ((False, "a"), (True, "ab")):
        answer = transcript(eog_ids=(ord("b"),), rules=TextRules(keeps_stop=keeps_stop))
        add(answer, b"ab")
        finish(answer, FinishReason.EOS)
        assert (answer.text, answer.reason) == (text, FinishReason.EOS)


def test_control_tokens_are_shown_where_that_is_asked_for() -> None:
    for rules, text in (
        (TextRules(), "ab"),
        (TextRules(shows_special=True), "a<|turn|>b"),
        (TextRules(shows_special=True, keeps_stop=True), "a<|turn|>b</s>"),
    ):
        answer = transcript(rules=rules)
        add(answer, [ord("a"), TURN, ord("b"), EOS])
        finish(answer, FinishReason.EOS)
        assert answer.text == text


def test_a_line_that_is_not_indented_ends_the_answer_before_it() -> None:
    answer = transcript(rules=TextRules(("z",), min_indent=2))
    assert texts(add(answer, b"a\n  b\n c")) == ["a", "\n", " ", " ", "b", "\n", " ", None]
    assert state(answer) == ("a\n  b\n ", FinishReason.LIMIT)


def test_a_line_that_is_not_indented_goes_before_a_stop_string_behind_it() -> None:
    answer = transcript(rules=TextRules(("c",), min_indent=1))
    add(answer, [ord("a"), ord("\n"), 0xC3])
    answer.add(TokenSampled(0, (), 3, Sample(0, ord("c")), 0.0, 14.0))
    assert (answer.text, answer.reason, answer.stopping_word) == ("a\n", FinishReason.LIMIT, "")


def test_a_line_of_text_that_was_held_back_must_be_indented_too() -> None:
    answer = transcript(rules=TextRules(("\nbc",), min_indent=1))
    assert texts(add(answer, b"a\nb")) == ["a", None, None]
    finish(answer, FinishReason.EOS)
    assert state(answer) == ("a\n", FinishReason.LIMIT)
