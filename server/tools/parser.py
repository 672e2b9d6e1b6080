"""Calls of tools told from the text of a reply, while it comes: names as soon as they are known, arguments piece by
piece.

The result depends on the text alone, not on how it is cut into pieces. What looks like a call and turns out to be none
is content, as it stands. White space around calls is layout, and dropped.
"""

import json
from collections.abc import Collection
from enum import Enum, auto

from server.replies.parts import CallArguments, CallStart, Content, Part, joined
from server.replies.reasoning import unfinished_marker
from server.tools.formats import ARGUMENTS_KEYS, ARGUMENTS_MARK, CALL_ID_MARK, CallFormat, Layout
from server.tools.json_end import SPACE, JsonValue

_MAX_NAME = 256
"""Characters of a name, beyond which text behind a marker is no call."""


class _Place(Enum):
    """Where in a call the next character stands."""

    BEGIN = auto()
    NAME = auto()
    """In the layout NAMED."""
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA = auto()
    DONE = auto()
    BROKEN = auto()


class _CallReader:
    """Reads one call, from the first character after its opener to its last one."""

    def __init__(self, form: CallFormat, index: int, names: Collection[str] | None) -> None:
        """Only a tool of `names` can be called; None: any."""
        self.place = _Place.BEGIN
        self.has_started = False
        """Whether its name has come, so that it is a call."""
        self._form = form
        self._index = index
        self._names = names
        self._word = ""
        """The name or key so far, or the value where it is not shown as it comes."""
        self._key = ""
        self._value = JsonValue()
        self._early_arguments: str | None = None
        """Those that came before the name."""
        self._has_arguments = False
        self._is_object = False

    def take(self, character: str) -> list[Part]:
        """Take the next character. Where `place` is BROKEN afterwards it belongs to no call."""
        match self.place:
            case _Place.NAME:
                return self._take_name(character)
            case _Place.IN_KEY:
                self._take_key(character)
                return []
            case _Place.VALUE if character not in SPACE or self._value.has_begun:
                return self._take_value(character)
            case _ if character in SPACE:
                return []
        match self.place, character:
            case _Place.BEGIN, "{":
                self.place, self._is_object = _Place.KEY, True
            case _Place.BEGIN, _ if self._form.layout is Layout.NAMED:
                return self._take_name(character)
            case _Place.KEY, '"':
                self.place, self._word = _Place.IN_KEY, ""
            case _Place.COLON, ":":
                self._begin_value(self._word)
            case _Place.COMMA, ",":
                self.place = _Place.KEY
            case _Place.COMMA, "}":
                return self._end()
            case _:
                self.place = _Place.BROKEN
        return []

    def _take_name(self, character: str) -> list[Part]:
        self._word += character
        self.place = _Place.NAME if len(self._word) < _MAX_NAME else _Place.BROKEN
        if not self._word.endswith(ARGUMENTS_MARK):
            return []
        name = self._word.removesuffix(ARGUMENTS_MARK).partition(CALL_ID_MARK)[0].strip()
        self._begin_value(self._form.arguments_key)
        return self._start(name)

    def _take_key(self, character: str) -> None:
        if character == '"':
            self.place = _Place.COLON
        else:
            self._word += character

    def _begin_value(self, key: str) -> None:
        self.place, self._key, self._word, self._value = _Place.VALUE, key, "", JsonValue()

    def _take_value(self, character: str) -> list[Part]:
        is_taken = self._value.take(character)
        parts: list[Part] = []
        if is_taken and self._shows_value:
            parts = [CallArguments(self._index, character)]
        elif is_taken:
            self._word += character
        if not self._value.is_complete:
            return parts
        self.place = _Place.COMMA
        parts += self._end_of_value()
        if self.place is not _Place.BROKEN and not is_taken:
            parts += self.take(character)
        return parts

    @property
    def _shows_value(self) -> bool:
        return self._key in ARGUMENTS_KEYS and self.has_started and not self._value.is_string

    def _end_of_value(self) -> list[Part]:
        if self._key in ARGUMENTS_KEYS:
            self._has_arguments = True
            if not self._is_object:
                self.place = _Place.DONE
            elif self.has_started and self._value.is_string:
                return [CallArguments(self._index, _unquoted(self._word))]
            elif not self.has_started:
                self._early_arguments = _unquoted(self._word) if self._value.is_string else self._word
        elif self._key == "name" and not self.has_started:
            return self._start(_unquoted(self._word)) if self._value.is_string else self._break()
        return []

    def _start(self, name: str) -> list[Part]:
        if not name or (self._names is not None and name not in self._names):
            return self._break()
        self.has_started = True
        parts: list[Part] = [CallStart(self._index, self._form.new_call_id(), name)]
        if self._early_arguments is not None:
            parts.append(CallArguments(self._index, self._early_arguments))
        return parts

    def _break(self) -> list[Part]:
        self.place = _Place.BROKEN
        return []

    def _end(self) -> list[Part]:
        if not self.has_started:
            return self._break()
        self.place = _Place.DONE
        return [] if self._has_arguments else [CallArguments(self._index, "{}")]


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:  # a wrong escape
        return text.strip('"')


class _State(Enum):
    """What a reply may go on with."""

    START = auto()
    """A call that begins without a marker, or text."""
    TEXT = auto()
    """Text, and perhaps a marker."""
    CALL = auto()
    BETWEEN = auto()
    """After a call: its closer, or what stands between calls."""
    PLAIN = auto()
    """Text alone."""


class ToolCallReader:
    """Splits a text that comes in pieces into content and calls of tools."""

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        """`names` are the tools of the request."""
        self._form = form
        self._names = None if form.opener else names
        self._state = _State.TEXT if form.opener else _State.START
        self._held = ""
        self._opener = ""
        self._raw = ""
        """The text of the call that is being read, behind its opener, until it has its name."""
        self._num_calls = 0
        self._call = self._new_call()

    def push(self, text: str) -> list[Part]:
        """Take the next piece; return what is certain."""
        parts: list[Part] = []
        self._held += text
        while self._held and (step := self._step()) is not None:
            parts += step
        return joined(parts)

    def flush(self) -> list[Part]:
        """Return what was held back: no more text comes."""
        is_layout = self._state is _State.BETWEEN or (self._num_calls > 0 and self._held.isspace())
        text = "" if is_layout else self._opener + self._raw + self._held
        self._held = self._opener = self._raw = ""
        return joined([Content(text)])

    def _new_call(self) -> _CallReader:
        return _CallReader(self._form, self._num_calls, self._names)

    def _step(self) -> list[Part] | None:
        """Go on in the text that is held; None where nothing more is certain."""
        match self._state:
            case _State.START:
                return self._look_for_object()
            case _State.TEXT:
                return self._look_for_opener()
            case _State.CALL:
                return self._read_call()
            case _State.BETWEEN:
                return self._look_behind_call()
            case _State.PLAIN:
                held, self._held = self._held, ""
                return [Content(held)]

    def _look_for_object(self) -> list[Part] | None:
        start = self._held.lstrip()
        mark = self._form.optional_opener
        after = start.removeprefix(mark).lstrip() if mark else start
        if after.startswith("{"):
            self._begin_call(self._held[: len(self._held) - len(after)], after)
        elif not after or mark.startswith(start):
            return None
        else:
            self._state = _State.PLAIN
        return []

    def _look_for_opener(self) -> list[Part] | None:
        before, opener, after = self._held.partition(self._form.opener)
        if opener:
            text = before.rstrip()
            self._begin_call(before[len(text) :] + opener, after)
            return [Content(text)]
        num_certain = len(before) - unfinished_marker(before, (self._form.opener,))
        self._held = before[num_certain:]
        return [Content(before[:num_certain])] if num_certain else None

    def _begin_call(self, opener: str, held: str) -> None:
        self._state, self._call = _State.CALL, self._new_call()
        self._opener, self._raw, self._held = opener, "", held

    def _read_call(self) -> list[Part]:
        """Read to the end of the call, or of the text."""
        parts: list[Part] = []
        for num_before, character in enumerate(self._held):
            if not self._begins_array(character):
                parts += self._call.take(character)
            if self._call.place is _Place.BROKEN:
                self._held = self._held[num_before:]
                return parts + self._give_up()
            if self._call.has_started:
                self._opener = self._raw = ""
            else:
                self._raw += character
            if self._call.place is _Place.DONE:
                self._num_calls += 1
                self._state, self._held = _State.BETWEEN, self._held[num_before + 1 :]
                return parts
        self._held = ""
        return parts

    def _begins_array(self, character: str) -> bool:
        is_possible = self._form.layout is not Layout.OBJECT and self._call.place is _Place.BEGIN
        return is_possible and character == "[" and not self._raw.strip()

    def _give_up(self) -> list[Part]:
        """What was read is no call, or what was one goes wrong."""
        if self._call.has_started:
            self._num_calls += 1
            self._state = _State.BETWEEN
            return []
        text, self._held = self._opener, self._raw + self._held
        self._opener = self._raw = ""
        self._state = _State.TEXT if self._form.opener else _State.PLAIN
        return [Content(text)]

    def _look_behind_call(self) -> list[Part] | None:
        form = self._form
        layout = [form.closer] if form.closer else [",", ";", "]"]
        markers = [marker for marker in (*layout, form.optional_opener, form.opener) if marker]
        rest = self._held.lstrip()
        while (found := next((marker for marker in markers if rest.startswith(marker)), None)) is not None:
            rest = rest.removeprefix(found).lstrip()
            if found == form.opener:
                self._begin_call(found, rest)
                return []
        self._held = rest
        if not form.closer and rest.startswith("{"):
            self._begin_call("", rest)
        elif any(marker.startswith(rest) for marker in markers):
            return None
        else:
            self._state = _State.TEXT if form.opener else _State.PLAIN
        return []
