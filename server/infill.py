"""The prompt that asks a model to fill in the middle: as much of the texts around the gap as there is room for, with
the model's tokens between them. Texts and order are llama-server's, so that the same request is the same prompt.

[repository]myproject [separator]name chunk … [separator]filename [prefix]text prompt[suffix]text[middle]
"""

from collections.abc import Sequence
from dataclasses import dataclass

from model.tokens.infill import FimTokens
from model.tokens.tokenizer import Tokenizer

_MAX_AROUND = 2048
"""Tokens of the texts before and after the gap; llama-server takes those of its default batch."""
_MIN_ANSWER = 4
_REPOSITORY, _FILE = "myproject\n", "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Before a chunk where there is no token for it."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """What is known of a gap, in tokens."""

    before: Tokens
    after: Tokens
    begun: Tokens = ()
    """What the text that fills it begins with."""
    chunks: Sequence[tuple[str, str]] = ()
    """Other texts, by the names of their files."""


def infill_prompt(tokenizer: Tokenizer, gap: Gap, num_context: int, num_answer: int, *, suffix_first: bool) -> Tokens:
    """Return the prompt for a gap: the end of what is before it, the beginning of what is after it, and the end of the
    chunks, so that `num_answer` tokens more fit in a context of `num_context`. The tokenizer's `fim` misses nothing.
    """
    fim = tokenizer.vocabulary.fim
    assert fim.prefix is not None
    assert fim.suffix is not None
    assert fim.middle is not None
    num_answer = max(num_answer, _MIN_ANSWER)
    num_around = min(_MAX_AROUND, max(num_context - num_answer, num_context // 2) - 2)  # BOS and the middle's token
    num_before = 3 * (num_around // 4)
    num_after = max(num_around // 4 - (2 + len(gap.begun)), 0)
    before = (fim.prefix, *gap.before[max(len(gap.before) - num_before, 0) :], *gap.begun)
    after = (fim.suffix, *gap.after[:num_after])
    around = after + before if suffix_first else before + after
    if tokenizer.adds_bos:
        assert tokenizer.bos_id is not None
        around = (tokenizer.bos_id, *around)
    chunks = _chunk_tokens(tokenizer, fim, gap.chunks)
    num_chunks = max(num_context - len(around) - 2 - 2 * num_answer, 0)
    return (*chunks[max(len(chunks) - num_chunks, 0) :], *around, fim.middle)


def _chunk_tokens(tokenizer: Tokenizer, fim: FimTokens, chunks: Sequence[tuple[str, str]]) -> Tokens:
    tokens: list[int] = []
    if fim.repository is not None:
        tokens += [fim.repository, *_plain(tokenizer, _REPOSITORY)]
    for name, text in chunks:
        if fim.separator is not None:
            tokens += [fim.separator, *_plain(tokenizer, name + "\n")]
        else:
            tokens += _plain(tokenizer, _SNIPPET)
        tokens += _plain(tokenizer, text)
    if fim.separator is not None:
        tokens += [fim.separator, *_plain(tokenizer, _FILE)]
    return tuple(tokens)


def _plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special=False)
