"""Find the first line of a text, arriving in pieces, that is not indented enough: there llama-server's `n_indent` ends
an answer. The first line may begin anywhere, for it goes on with a line of the prompt."""


class LineIndent:
    """The indentation of the text so far, where each line but the first needs `min_indent` blanks; 0 needs none."""

    def __init__(self, min_indent: int) -> None:
        self._min_indent = min_indent
        self._width: int | None = None
        """Of the line that has begun; None where it may go on as it likes."""

    def push(self, text: str) -> tuple[str, bool]:
        """Take the next piece of text; return what of it stands before the first character of a line that is not
        indented enough, and whether there is one. An empty line is none that is. Nothing may be pushed after it."""
        if self._min_indent == 0:
            return text, False
        for place, character in enumerate(text):
            if self._width is not None:
                if character in " \t":
                    self._width += 1
                    continue
                if self._width < self._min_indent:
                    return text[:place], True
                self._width = None
            if character == "\n":
                self._width = 0
        return text, False
