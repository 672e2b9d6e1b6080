"""Where the indentation of lines ends a text, however it is cut into pieces."""

from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokens.line_indent import LineIndent


def kept(text: str, min_indent: int) -> str:
    """The same by whole lines: an empty line or one that is not indented enough ends the text before its content."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        width = len(line) - len(line.lstrip(" \t"))
        is_complete = number + 1 < len(lines) or width < len(line)
        if number > 0 and is_complete and width < min_indent:
            return "\n".join([*lines[:number], line[:width]])
    return text


@settings(deadline=None)
@given(st.lists(st.text(alphabet="a \t\n", max_size=4), max_size=8), st.integers(0, 3))
def test_pieces_give_what_whole_lines_give(pieces: list[str], min_indent: int) -> None:
    indent, shown, is_over = LineIndent(min_indent), "", False
    for piece in pieces:
        if not is_over:
            part, is_over = indent.push(piece)
            shown += part
    text = "".join(pieces)
    assert shown == kept(text, min_indent)
    assert is_over == (shown != text)
