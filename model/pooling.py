"""From the hidden states of a prompt to its embedding, chunk by chunk: which states a row wants, how they are added to
those of the rows before, and what it all comes to. Bytes between the chunks, that the scheduler can keep.

However a prompt is cut, its embedding has the same bits: states are added one by one, in order, in float64. Source of
the ways to pool: llama.cpp's `llama_pooling_type`, which sentence-transformers has under other names.

n tokens whose states are wanted, D hidden.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.checkpoint.fields import Fields, read_json_object
from scheduler.batch import Pooling, Row

Floats = NDArray[np.float32]

_GGUF_TYPES = {0: Pooling.NONE, 1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
_SENTENCE_TRANSFORMERS = "1_Pooling/config.json"
_MODES = {
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_lasttoken": Pooling.LAST,
}


def wanted_tokens(row: Row) -> range:
    """Return which of a row's tokens have states that its pooling needs, by their index in the row."""
    count = len(row.token_ids)
    match row.pooling:
        case Pooling.NONE | Pooling.MEAN:
            return range(count)
        case Pooling.CLS:
            return range(row.start == 0)
        case Pooling.LAST:
            return range(count - 1, count)
    return range(0)


def add_states(pooling: Pooling, before: bytes, states: Floats) -> bytes:
    """Return what a request's rows so far come to: `before`, of the rows before, and the wanted `states` (n, D)."""
    if pooling is Pooling.NONE:
        return before + states.tobytes()
    if pooling is not Pooling.MEAN:
        return states.tobytes() if len(states) else before
    total = np.frombuffer(before).copy() if before else np.zeros(states.shape[1])  # (D,)
    for state in states:
        total += state
    return total.tobytes()


def embedding(pooling: Pooling, pooled: bytes, num_tokens: int) -> Floats:
    """Return the embedding of a whole prompt of so many tokens, not normalised: (1, D), (n, D) where it is not
    pooled."""
    if pooling is Pooling.MEAN:
        return (np.frombuffer(pooled) / num_tokens).astype(np.float32)[None]
    return np.frombuffer(pooled, np.float32).reshape(num_tokens if pooling is Pooling.NONE else 1, -1)


def stated_pooling(path: Path, metadata: Mapping[str, object] | None) -> Pooling | None:
    """Return how a checkpoint says that its states are to be pooled; None where it does not, as models that generate.

    `metadata` is a GGUF file's, None for a directory, which says it as sentence-transformers does. Raises
    CheckpointError where that cannot be read.
    """
    if metadata is not None:
        kind = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
        return _GGUF_TYPES.get(kind) if isinstance(kind, int) else None
    file = path / _SENTENCE_TRANSFORMERS
    if not file.is_file():
        return None
    modes = Fields(read_json_object(file), str(file))
    stated = [pooling for mode, pooling in _MODES.items() if modes.flag(mode, False)]
    return stated[0] if len(stated) == 1 else None
