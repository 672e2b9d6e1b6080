"""Turn a stream of tokens into a stream of text. It must not know of requests, stop strings or the wire.

A token may end in the middle of a UTF-8 character: its bytes wait until the character is complete or is known to be
none. So the pieces joined equal the text of all tokens at once, however they are pushed (U+FFFD for invalid bytes, by
the rule of the Unicode Standard, section 3.9, "U+FFFD Substitution of Maximal Subparts", which is Python's).
"""

import codecs
from collections.abc import Collection

from model.tokens.tokenizer import Tokenizer


class Detokenizer:
    """The text of one sequence of tokens, as it becomes certain.

    Control tokens and tokens that end generation have no text here, unless `render_special` or among `shown_ids`.
    """

    def __init__(self, tokenizer: Tokenizer, *, render_special: bool = False, shown_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._render_special = render_special
        self._shown_ids = shown_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is now certain, "" where a character is incomplete."""
        is_shown = self._render_special or token_id in self._shown_ids
        if not is_shown and self._tokenizer.is_control(token_id):
            return ""
        return self._utf8.decode(self._tokenizer.piece(token_id))

    def flush(self) -> str:
        """Return U+FFFD for a character that stayed incomplete, else ""."""
        return self._utf8.decode(b"", final=True)
