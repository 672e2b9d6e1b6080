"""What decides which of the generated text an answer shows, and where it ends beside its tokens. Values alone;
transcript.py goes by them, and answers that can be given again are known by them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextRules:
    """How the text of an answer is made of its tokens."""

    stop: tuple[str, ...] = ()
    """Texts that end the answer, which is shown up to them."""
    keeps_stop: bool = False
    """Whether the stop string, or the token that ended the answer, is shown as well."""
    shows_special: bool = False
    """Whether control tokens are shown."""
    shown_ids: frozenset[int] = frozenset()
    """Those that are shown in any case."""
    min_indent: int = 0
    """Blanks that each line but the first must begin with; the answer ends before one that does not. 0: no rule."""
    max_generation_ms: int = 0
    """Counts from the first token, and ends the answer once it has a new line; 0: no limit."""
