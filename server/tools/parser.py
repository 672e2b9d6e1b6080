"""Calls of tools told from the text of a reply, while it comes: names as soon as they are known, arguments piece by
piece.

The result depends on the text alone, not on how it is cut into pieces. What looks like a call and turns out to be none
is content, as it stands. White space around calls is layout, and dropped.
"""

from collections.abc import Collection
from enum import Enum, auto

from server.replies.parts import Content, Part, joined
from server.replies.reasoning import cut_at, unfinished_marker
from server.tools.call import Call, by_name
from server.tools.fields import Tool
from server.tools.formats import CallFormat
from server.tools.json_object import JsonObject
from server.tools.source import NoCall, Source, Steps


class _Place(Enum):
    """How far a call is read."""

    INSIDE = auto()
    DONE = auto()
    BROKEN = auto()
    """What comes next belongs to no call."""


class _CallReader:
    """Reads one call, from the first character after its opener to its last one."""

    def __init__(self, form: CallFormat, call: Call, *, needs_opener: bool, is_first: bool) -> None:
        """`needs_opener`: only that of its section has come. `is_first`: no call of its section has come."""
        self.call = call
        self.place = _Place.INSIDE
        self._form = form
        self._source = Source()
        self._steps = self._read(needs_opener=needs_opener, is_first=is_first)

    @property
    def rest(self) -> str:
        """The text that is not the call's, once that is known."""
        return self._source.held

    def push(self, text: str) -> list[Part]:
        """Take the next piece; return what is certain."""
        self._source.held += text
        try:
            next(self._steps)
        except StopIteration:
            self.place = _Place.DONE
        except NoCall:
            self.place = _Place.BROKEN
        return self.call.take()

    def _read(self, *, needs_opener: bool, is_first: bool) -> Steps[None]:
        yield from self._source.blank()
        if is_first and self._form.is_array:
            yield from self._source.found("[")
            yield from self._source.blank()
        if needs_opener:
            yield from self._source.expect(self._form.opener)
            yield from self._source.blank()
        yield from self._form.notation.read(self._source, self.call)


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

    def __init__(self, form: CallFormat, tools: Collection[Tool]) -> None:
        """`tools` are those of the request."""
        self._form = form
        self._tools = by_name(tools)
        self._openers = tuple(word for word in (form.section_opener, form.opener, *form.bare_openers(tools)) if word)
        self._state = _State.TEXT if form.trigger else _State.START
        self._held = ""
        self._opener = ""
        self._raw = ""
        """The text of the call that is being read, behind its opener, until it has its name."""
        self._is_bare = False
        """Whether the opener of the call was left out."""
        self._num_calls = 0
        self._reader = self._new_reader()

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

    def _new_reader(self, *, needs_opener: bool = False, is_first: bool = False) -> _CallReader:
        form = self._form
        call = Call(self._num_calls, self._tools, only_tools=not form.trigger, id_length=form.call_id_length)
        return _CallReader(form, call, needs_opener=needs_opener, is_first=is_first)

    def _step(self) -> list[Part] | None:
        """Go on in the text that is held; None where nothing more is certain."""
        match self._state:
            case _State.START:
                return self._look_for_head()
            case _State.TEXT:
                return self._look_for_opener()
            case _State.CALL:
                return self._read_call()
            case _State.BETWEEN:
                return self._look_behind_call()
            case _State.PLAIN:
                held, self._held = self._held, ""
                return [Content(held)]

    def _look_for_head(self) -> list[Part] | None:
        start = self._held.lstrip()
        mark = self._form.optional_opener
        after = start.removeprefix(mark).lstrip() if mark else start
        if after.startswith(self._form.notation.head):
            self._begin_call(self._held[: len(self._held) - len(after)], after)
        elif not after or mark.startswith(start):
            return None
        else:
            self._state = _State.PLAIN
        return []

    def _look_for_opener(self) -> list[Part] | None:
        before, opener = cut_at(self._held, self._openers)
        if opener:
            text = before.rstrip()
            self._begin_call(before[len(text) :] + opener, self._held[len(before) + len(opener) :], opener)
            return [Content(text)]
        num_certain = len(before) - unfinished_marker(before, self._openers)
        self._held = before[num_certain:]
        return [Content(before[:num_certain])] if num_certain else None

    def _begin_call(self, before: str, held: str, opener: str = "") -> None:
        """Read a call from `held` on; `before` is text that is content if there is none, and ends with `opener`."""
        form = self._form
        is_section = opener != "" and opener == form.section_opener
        self._is_bare = opener not in ("", form.section_opener, form.opener)
        self._state = _State.CALL
        self._reader = self._new_reader(needs_opener=is_section and form.opener != "", is_first=is_section)
        # Of a call whose opener was left out, the name is read again.
        self._opener = before.removesuffix(opener) if self._is_bare else before
        self._raw, self._held = "", opener + held if self._is_bare else held

    def _read_call(self) -> list[Part]:
        """Read to the end of the call, or of the text."""
        reader = self._reader
        if not reader.call.has_started:
            self._raw += self._held
        parts, self._held = reader.push(self._held), ""
        if reader.call.has_started:
            self._opener = self._raw = ""
        match reader.place:
            case _Place.DONE:
                self._num_calls += 1
                self._state, self._held = _State.BETWEEN, reader.rest
            case _Place.BROKEN if reader.call.has_started:
                self._num_calls += 1
                self._state, self._held = _State.BETWEEN, reader.rest
            case _Place.BROKEN:
                return parts + self._give_up()
        return parts

    def _give_up(self) -> list[Part]:
        """What was read is no call."""
        text, self._held = self._opener, self._raw
        if self._is_bare:  # its beginning is not to be found again
            text, self._held = text + self._held[:1], self._held[1:]
        self._opener = self._raw = ""
        self._state = _State.TEXT if self._form.trigger else _State.PLAIN
        return [Content(text)]

    def _look_behind_call(self) -> list[Part] | None:
        form = self._form
        layout = [word for word in (form.closer, form.section_closer) if word] + self._separators
        markers = [*layout, *(word for word in (form.optional_opener, form.opener, form.section_opener) if word)]
        rest = self._held.lstrip()
        while (found := next((marker for marker in markers if rest.startswith(marker)), None)) is not None:
            rest = rest.removeprefix(found).lstrip()
            if found in self._openers or (found == "," and self._has_bare_names):
                self._begin_call(found, rest, found if found in self._openers else "")
                return []
        self._held = rest
        head = "" if form.opener else form.notation.head
        if head and rest.startswith(head):
            self._begin_call("", rest)
        elif any(marker.startswith(rest) for marker in (*markers, head) if marker):
            return None
        else:
            self._state = _State.TEXT if form.trigger else _State.PLAIN
        return []

    @property
    def _has_bare_names(self) -> bool:
        """Whether calls in an array begin with their names."""
        return self._form.is_array and not self._form.opener and not self._form.notation.head

    @property
    def _separators(self) -> list[str]:
        if self._form.is_array:
            return [",", ";", "]"]
        is_bare_json = isinstance(self._form.notation, JsonObject) and not self._form.trigger
        return [",", ";"] if is_bare_json else []
