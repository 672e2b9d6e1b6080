"""Which of several answers to one prompt a client gets that asked for the best ones."""

from collections.abc import Sequence
from dataclasses import replace

from server.replies.transcript import Transcript


def best_of(transcripts: Sequence[Transcript], count: int) -> list[Transcript]:
    """Return the `count` answers to each prompt whose tokens are the most likely on average, the best first, numbered
    anew; all answers as they are where there are no more. Where they are more, their tokens have log-probabilities."""
    by_prompt: dict[int, list[Transcript]] = {}
    for transcript in transcripts:
        by_prompt.setdefault(transcript.choice.prompt_index, []).append(transcript)
    if all(len(group) <= count for group in by_prompt.values()):
        return list(transcripts)
    best = [item for group in by_prompt.values() for item in sorted(group, key=_mean_logprob, reverse=True)[:count]]
    for index, transcript in enumerate(best):
        transcript.choice = replace(transcript.choice, index=index)
    return best


def _mean_logprob(transcript: Transcript) -> float:
    logprobs = [sample.logprob for sample in transcript.received if sample.logprob is not None]
    assert len(logprobs) == transcript.num_generated
    return sum(logprobs) / len(logprobs) if logprobs else 0.0
