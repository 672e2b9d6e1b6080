"""What the fuzzers share: numbers at the edges, and damage to bytes that nobody looked at."""

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from hypothesis import strategies as st

Value = TypeVar("Value")


class Draw(Protocol):
    """What hypothesis passes to a composite strategy."""

    def __call__(self, strategy: st.SearchStrategy[Value], /) -> Value: ...


class DrawnFile:
    """A file, and what a check needs to know of it. (No dataclass: hypothesis would show all of it.)"""

    def __init__(self, content: bytes, names: frozenset[str], num_values: int | None = None) -> None:
        """`names`: of which a refusal must have one; `num_values`: what its LoRA matrices and norms hold together, None
        where it may not be readable."""
        self.content = content
        self.names = names
        self.num_values = num_values

    def __repr__(self) -> str:
        return f"<file of {len(self.content)} bytes>"


_EDGES = (7, 15, 31, 32, 53, 62, 63, 64)
NASTY_INTEGERS = st.sampled_from([0, 1, 2, 3, 4, 31, 32, 33, 63, 64, 65, *(2**bits - 1 for bits in _EDGES)]) | (
    st.sampled_from([2**bits for bits in _EDGES[:-1]])
)
"""Of 64 bits without a sign at most."""
_Damage: TypeAlias = Callable[[Draw, bytes, int], bytes]


def damage_bytes(draw: Draw, content: bytes, header_end: int) -> bytes:
    """Return the content changed, cut or with something in it, mostly before `header_end`."""
    if not content:
        return draw(st.binary(max_size=16))
    damage: _Damage = draw(st.sampled_from(_DAMAGES))
    return damage(draw, content, max(1, header_end))


def _change(draw: Draw, content: bytes, header_end: int) -> bytes:
    changed = bytearray(content)
    places = st.integers(0, header_end - 1) | st.integers(0, len(content) - 1)
    for place in draw(st.lists(places, min_size=1, max_size=4)):
        changed[place] = draw(st.integers(0, 255))
    return bytes(changed)


def _overwrite(draw: Draw, content: bytes, header_end: int) -> bytes:
    place = draw(st.integers(0, header_end - 1))
    size = draw(st.sampled_from([1, 2, 4, 8]))
    number: int = draw(NASTY_INTEGERS) % 256**size
    return content[:place] + number.to_bytes(size, "little") + content[place + size :]


def _cut(draw: Draw, content: bytes, header_end: int) -> bytes:
    return content[: draw(st.integers(0, header_end) | st.integers(0, len(content)))]


def _insert(draw: Draw, content: bytes, header_end: int) -> bytes:
    place = draw(st.integers(0, header_end) | st.integers(0, len(content)))
    return content[:place] + draw(st.binary(min_size=1, max_size=16)) + content[place:]


def _remove(draw: Draw, content: bytes, header_end: int) -> bytes:
    place = draw(st.integers(0, header_end))
    return content[:place] + content[place + draw(st.integers(1, 64)) :]


_DAMAGES: list[_Damage] = [_change, _overwrite, _cut, _insert, _remove]
