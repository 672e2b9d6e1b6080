"""The text by which models are calibrated: prose, letters, code, tables and talk in several languages."""

from pathlib import Path

from model.tokenizer import Tokenizer

_TEXT = Path(__file__).with_suffix(".txt")
_BREAK = "\n----\n"


def calibration_prompts(tokenizer: Tokenizer, max_position: int) -> list[list[int]]:
    """Return the pieces of the text as tokens, about a thousand in all, none longer than `max_position`."""
    pieces = _TEXT.read_text(encoding="utf-8").split(_BREAK)
    return [tokenizer.encode(piece.strip(), add_special=True)[:max_position] for piece in pieces]
