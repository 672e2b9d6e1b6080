"""Prompts for filling in: their order, and that they fit."""

from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokens.infill import FimTokens
from server.infill import Gap, infill_prompt
from tests.server.fakes import BOS, byte_tokenizer

PREFIX, SUFFIX, MIDDLE, REPOSITORY, SEPARATOR = range(1, 6)
FULL = byte_tokenizer(fim=FimTokens(PREFIX, SUFFIX, MIDDLE, REPOSITORY, SEPARATOR))
PLAIN = byte_tokenizer(fim=FimTokens(PREFIX, SUFFIX, MIDDLE))


def tokens(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


GAP = Gap(tokens("before"), tokens("after"), tokens("begun"), [("a.py", "one"), ("tmp", "two")])


def test_what_is_before_comes_first() -> None:
    wanted = (BOS, PREFIX, *tokens("beforebegun"), SUFFIX, *tokens("after"), MIDDLE)
    gap = Gap(GAP.before, GAP.after, GAP.begun)
    assert infill_prompt(PLAIN, gap, 512, 8, suffix_first=False) == wanted
    wanted = (BOS, SUFFIX, *tokens("after"), PREFIX, *tokens("beforebegun"), MIDDLE)
    assert infill_prompt(PLAIN, gap, 512, 8, suffix_first=True) == wanted


def test_chunks_stand_before_all_with_the_names_of_their_files() -> None:
    got = infill_prompt(FULL, GAP, 512, 8, suffix_first=False)
    files = (SEPARATOR, *tokens("a.py\none"), SEPARATOR, *tokens("tmp\ntwo"), SEPARATOR, *tokens("filename\n"))
    around = (BOS, PREFIX, *tokens("beforebegun"), SUFFIX, *tokens("after"), MIDDLE)
    assert got == (REPOSITORY, *tokens("myproject\n"), *files, *around)


def test_without_tokens_for_files_a_line_is_between_them() -> None:
    got = infill_prompt(PLAIN, GAP, 512, 8, suffix_first=False)
    snippet = "\n\n--- snippet ---\n\n"
    assert got[: got.index(BOS)] == tokens(f"{snippet}one{snippet}two")


@settings(deadline=None)
@given(
    st.integers(16, 5000), st.integers(-1, 3000), st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 5000),
    st.booleans(),
)  # fmt: skip
def test_it_fits_with_its_answer_and_the_nearest_text_is_kept(
    num_context: int, num_answer: int, num_before: int, num_after: int, num_chunk: int, suffix_first: bool
) -> None:
    gap = Gap((200,) * num_before, (201,) * num_after, chunks=[("x", "c" * num_chunk)])
    got = infill_prompt(FULL, gap, num_context, num_answer, suffix_first=suffix_first)
    assert len(got) < num_context
    if num_answer <= num_context // 2:
        assert len(got) + num_answer <= num_context
    if num_before + num_after + num_chunk + max(num_answer, 4) * 2 + 60 < min(num_context, 2048) // 4:
        assert (got.count(200), got.count(201)) == (num_before, num_after)
        assert got[0] == REPOSITORY
