"""What a token that was seen already loses: the repeat, frequency and presence penalties.

Sources: repeat penalty, Keskar et al., arXiv 1909.05858; the others as OpenAI documents them.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from scheduler.batch import SamplingParams

Floats: TypeAlias = npt.NDArray[np.float64]


def penalised(logits: Floats, counts: npt.NDArray[np.int64], params: SamplingParams) -> Floats:
    """Return the logits of tokens that were seen `counts` times (both of one shape), penalised."""
    scaled = np.where(logits > 0, logits / params.repeat_penalty, logits * params.repeat_penalty)
    penalised: Floats = scaled - counts * params.frequency_penalty - params.presence_penalty
    return penalised
