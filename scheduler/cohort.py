"""Rule 1: who may share a batch. Everything that builds or compares adapter lists lives in this file.

An *adapter list* gives one scale per loaded adapter. Its canonical form, the *cohort key*, holds the pairs (adapter,
scale) with scale ≠ 0, sorted by load id, scales rounded to float32 (the precision in which they are applied). Requests
whose keys differ never share a batch; caches are seeded by the key. The rule is llama.cpp's `are_lora_equal`
(tools/server/server-common.cpp), asked here by everyone who needs it.

An *activated* adapter (aLoRA, arXiv 2504.12397) acts from a position of the prompt on: then the key is a function of
the position. What is computed before is computed as without that adapter, and is found by everybody's caches."""

import math
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias


class AdapterId(NamedTuple):
    """What makes a loaded adapter itself: `load_id` never repeats in a process; `digest` names the content of its
    files."""

    load_id: int
    digest: str


CohortKey: TypeAlias = tuple[tuple[AdapterId, float], ...]
CacheSeed: TypeAlias = tuple[tuple[str, float], ...]
ListSeed: TypeAlias = tuple[tuple[int, CacheSeed], ...]


class Activation(NamedTuple):
    """An adapter of a list that acts on the token at position `start` and on all after it, and on none before."""

    start: int
    adapter: AdapterId


Activations: TypeAlias = tuple[Activation, ...]
"""At most one for an adapter. Adapters of the list that have none act on all tokens."""


BASE: CohortKey = ()
"""The key of the base model: no adapter at a scale other than 0."""


def cohort_key(scales: Iterable[tuple[AdapterId, float]]) -> CohortKey:
    """Return the canonical key of an adapter list.

    Raises ValueError where a scale is NaN or infinite in float32, or an adapter is named twice.
    """
    pairs = sorted((adapter, as_float32(scale)) for adapter, scale in scales)
    if len({adapter.load_id for adapter, _ in pairs}) != len(pairs):
        raise ValueError(f"adapter list names an adapter twice: {[adapter.load_id for adapter, _ in pairs]}")
    return tuple((adapter, scale) for adapter, scale in pairs if scale != 0.0)


def can_share_batch(a: CohortKey, b: CohortKey) -> bool:
    """Whether two requests may be computed in one step: only where their adapter lists are equal, scale by scale."""
    return a == b


def key_at(key: CohortKey, activations: Activations, position: int) -> CohortKey:
    """Return the key under which the token at `position` is computed: `key` without the adapters that do not act
    yet."""
    dormant = [adapter for start, adapter in activations if start > position]
    return tuple(pair for pair in key if pair[0] not in dormant) if dormant else key


def next_switch(activations: Activations, position: int) -> int | None:
    """Return the first position after `position` at which the key changes; None where it stays."""
    return min((start for start, _ in activations if start > position), default=None)


def keys_along(key: CohortKey, activations: Activations) -> Iterator[tuple[int, CohortKey]]:
    """Yield each position from which on tokens are computed under another key, and that key; the first is 0."""
    position: int | None = 0
    while position is not None:
        yield position, key_at(key, activations, position)
        position = next_switch(activations, position)


def cache_seed(key: CohortKey) -> CacheSeed:
    """What a cache of anything computed under `key` must be keyed by: contents and scales, not names or load ids.

    The order of the adapters stays, for floating-point sums follow it.
    """
    return tuple((adapter.digest, scale) for adapter, scale in key)


def list_seed(key: CohortKey, activations: Activations) -> ListSeed:
    """What a cache of whole sequences must be keyed by: from each position on at which the key changes, its
    `cache_seed`."""
    return tuple((position, cache_seed(key_there)) for position, key_there in keys_along(key, activations))


def as_float32(scale: float) -> float:
    """Return a scale in the precision in which it is applied. Raises ValueError where that is not a finite number."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", scale))[0]
    except OverflowError:
        rounded = math.inf
    if not math.isfinite(rounded):
        raise ValueError(f"adapter scale must be a finite number, got {scale}")
    return rounded
