"""Find the first stop string in a text that arrives in pieces, and decide which text is safe to send meanwhile.

*First* is the one that is complete first: generation stops with the character that completes a stop string, however the
text was cut into pieces. Where two end at that character the longer one counts, for it begins earlier. (A stop string
that holds another one inside can so never be reached; waiting for it would mean to generate past a stop string.)

Each stop string is followed by the automaton of Knuth, Morris and Pratt, "Fast pattern matching in strings", SIAM J.
Comput. 6 (1977): a piece costs time in proportion to its length, whatever the length of the stop strings.
"""

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one request, and what its text so far matches of them.

    Empty strings are dropped, as llama-server does.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._borders = tuple(_borders(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)  # how much of each stop string the text so far ends with
        self._held = ""
        self._hit: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next piece of text; return what may be sent now, and the stop string that is now reached, or None.

        Text that may be the beginning of a stop string is held back. The text before a stop string is returned with it;
        the stop string and what follows are dropped. Nothing may be pushed after a hit.
        """
        assert self._hit is None, f"text after the stop string {self._hit!r}"
        if not self._stops:
            return text, None
        for consumed, character in enumerate(text, start=1):
            self._hit = self._advance(character)
            if self._hit is not None:
                seen = self._held + text[:consumed]
                self._held = ""
                return seen[: len(seen) - len(self._hit)], self._hit
        seen = self._held + text
        safe = len(seen) - max(self._matched)
        self._held = seen[safe:]
        return seen[:safe], None

    def flush(self) -> str:
        """Return the text held back: generation has ended, so it begins no stop string."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _advance(self, character: str) -> str | None:
        """Move every automaton by one character; return the longest stop string that it completes."""
        hit: str | None = None
        for i, (stop, borders) in enumerate(zip(self._stops, self._borders, strict=True)):
            matched = self._matched[i]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            if stop[matched] == character:
                matched += 1
            self._matched[i] = matched
            if matched == len(stop) and (hit is None or len(stop) > len(hit)):
                hit = stop
        return hit


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`: the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    matched = 0
    for i in range(1, len(stop)):
        while matched and stop[matched] != stop[i]:
            matched = borders[matched - 1]
        if stop[matched] == stop[i]:
            matched += 1
        borders[i] = matched
    return borders
