"""Which tokens begin a text that breaks DRY's repetitions, and which must follow. It must not know of requests.

A token breaks by itself where its text holds the whole breaker; where its text ends with the beginning of one, the
tokens of the rest must follow. Source: the rules of llama.cpp.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias
from weakref import WeakKeyDictionary

from model.tokens.tokenizer import Tokenizer

Breakers: TypeAlias = Mapping[int, tuple[tuple[int, ...], ...]]
"""For each token that begins a breaker the tokens that may follow; nothing where it is a whole one."""

_MAX_FOLLOWING = 20
_MAX_KEPT = 256
_KEPT: WeakKeyDictionary[Tokenizer, dict[str, Breakers]] = WeakKeyDictionary()
"""What was found of a tokenizer's texts: finding it takes a look at every token."""


def breaker_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> Breakers:
    """Return the tokens of the breakers `texts`, none of which is empty. Takes milliseconds for each new text."""
    merged: dict[int, tuple[tuple[int, ...], ...]] = {}
    for text in texts:
        for token_id, following in _tokens_of(tokenizer, text).items():
            merged[token_id] = tuple(dict.fromkeys(merged.get(token_id, ()) + following))
    return merged


def _tokens_of(tokenizer: Tokenizer, text: str) -> Breakers:
    kept = _KEPT.setdefault(tokenizer, {})
    if text not in kept:
        if len(kept) >= _MAX_KEPT:
            kept.clear()
        kept[text] = dict(_find(tokenizer, text.encode()))
    return kept[text]


def _find(tokenizer: Tokenizer, text: bytes) -> Iterator[tuple[int, tuple[tuple[int, ...], ...]]]:
    for token_id in range(tokenizer.vocab_size):
        piece = tokenizer.piece(token_id)
        if text in piece:
            yield token_id, ((),)
        elif text[:1] in piece:
            rests = [text[length:] for length in range(1, len(text)) if piece.endswith(text[:length])]
            following = tuple(ids for rest in rests if (ids := _encoded(tokenizer, rest)))
            if following:
                yield token_id, following


def _encoded(tokenizer: Tokenizer, rest: bytes) -> tuple[int, ...]:
    """Return the tokens of a text; none where it begins within a character."""
    try:
        text = rest.decode()
    except UnicodeDecodeError:
        return ()
    return tuple(tokenizer.encode(text, add_special=False, parse_special=False)[:_MAX_FOLLOWING])
