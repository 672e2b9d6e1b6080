"""Work whose time grows with what a client sent: done at once where that is little, else on a thread, so that streams
go on meanwhile.

The interpreter lets threads take turns between steps of Python. One call into the json module is such a step: how long
the longest may take is bounded in schemas.py.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LARGE = 200
_TEXT_UNIT = 1024


async def in_proportion(work: Callable[[], T], *sent: object) -> T:
    """Run `work`, which takes time in proportion to the JSON values `sent`. Return what it returns, raise what it
    raises."""
    return await asyncio.to_thread(work) if is_large(*sent) else work()


def is_large(*sent: object) -> bool:
    """Whether JSON values have so many parts, or so much text, that work on them would delay everybody's tokens."""
    size, unseen = 0, list(sent)
    while unseen and size <= _LARGE:
        value = unseen.pop()
        size += 1
        if isinstance(value, str):
            size += len(value) // _TEXT_UNIT
        elif isinstance(value, list | tuple):
            unseen += value
        elif isinstance(value, dict):
            unseen += value.values()
    return size > _LARGE
