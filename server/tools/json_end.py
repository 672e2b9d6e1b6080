"""Where a JSON value ends, found while its text comes character by character. Checks no more than that takes."""

SPACE = " \t\r\n"
_BEHIND_SCALAR = ",]}" + SPACE


class JsonValue:
    """A JSON value whose text comes character by character."""

    def __init__(self) -> None:
        self.has_begun = False
        self.is_string = False
        self.is_complete = False
        self._depth = 0
        self._is_scalar = False
        self._in_string = False
        self._is_escaped = False

    def take(self, character: str) -> bool:
        """Take the next character; False where it is behind the value, which is then complete."""
        if self._in_string:
            self._take_of_string(character)
            return True
        if not self.has_begun:
            self.has_begun = True
            self.is_string = character == '"'
            self._is_scalar = character not in '{["'
        if self._is_scalar:
            self.is_complete = character in _BEHIND_SCALAR
            return not self.is_complete
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_complete = self._depth == 0
        return True

    def _take_of_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._in_string = False
            self.is_complete = self._depth == 0
