"""Small vocabularies for constraints, and short ways to make and to walk them."""

from collections.abc import Sequence

import tokenizers
from tokenizers import AddedToken, models

from model.constraints.constraint import Constraint, ConstraintCompiler, ConstraintText, Syntax
from model.constraints.filter import ConstraintFilter
from model.tokens.tokenizer import Tokenizer
from model.tokens.vocabulary import Vocabulary


def make_tokenizer(
    pieces: Sequence[bytes], special: Sequence[str] = ("</s>",), ends: Sequence[str] = ("</s>",)
) -> Tokenizer:
    """Return a tokenizer of these pieces, with control tokens behind them; those of `ends` end generation."""
    encoder = tokenizers.Tokenizer(models.BPE(vocab={f"piece {i}": i for i in range(len(pieces))}, merges=[]))
    encoder.add_special_tokens([AddedToken(text, special=True) for text in special])
    all_pieces = (*pieces, *(text.encode() for text in special))
    vocabulary = Vocabulary(
        encoder=encoder,
        pieces=all_pieces,
        control_ids=frozenset(range(len(pieces), len(all_pieces))),
        bos_id=None,
        eos_id=len(pieces) + special.index(ends[0]) if ends else None,
        adds_bos=False,
        adds_eos=False,
        eog_ids=frozenset(len(pieces) + special.index(text) for text in ends),
        special_tokens={},
        chat_template=None,
        tool_use_template=None,
    )
    return Tokenizer(vocabulary, len(all_pieces))


_COMPILER = ConstraintCompiler()


def compile_text(tokenizer: Tokenizer, text: str | ConstraintText, syntax: Syntax = Syntax.GBNF) -> Constraint:
    """Return a constraint, compiled here and now. Raises ConstraintError."""
    wanted = text if isinstance(text, ConstraintText) else ConstraintText(syntax, text)
    return _COMPILER.compile(tokenizer, wanted).result()


def allowed_ids(token_filter: ConstraintFilter) -> set[int]:
    """Return the tokens that may come next."""
    return {token_id for token_id, is_allowed in enumerate(token_filter.allowed()) if is_allowed}
