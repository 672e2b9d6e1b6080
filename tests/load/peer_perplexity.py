"""The perplexity of what a running server computes, on a fixed text, by one method for both.

The text is cut into windows; within a window the tokens after a lead-in are scored, each by the log-probability that
the server itself reports for it. So that it is that of a decode step with as many rows as the workload had clients,
the server is made to *generate* the text: `logit_bias` puts the next few tokens above all others, in descending order,
and a presence penalty over just these takes away each one as it comes. Neither changes the reported log-probabilities,
which are those of the model (`post_sampling_probs` is off). A token that comes again within such a segment would be
penalised too early, so a segment ends before it. Servers that did not return exactly the text are an error.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from tests.load.client import HttpError
from tests.load.peer_workloads import AdapterList, lora_field

NUM_WINDOWS = 16
LEAD_IN = 24
"""Tokens of each window that are not scored."""
MAX_SEGMENT = 8
TEXT = Path(__file__).with_name("peer_text.txt")
_STEP = 1000.0
"""Between the biases of neighbours: more than logits differ by."""
_PENALTY = 1e5


def perplexity(port: int, lists: Sequence[AdapterList], num_rows: int) -> float:
    """Return the perplexity under the adapter lists, windows taking them in turn, with `num_rows` windows at once.

    Raises RuntimeError where the server does not generate the text.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_perplexity(port, lists, num_rows))


async def _perplexity(port: int, lists: Sequence[AdapterList], num_rows: int) -> float:
    text = TEXT.read_text(encoding="utf-8")
    tokens: list[int] = (await _post(port, "/tokenize", {"content": text}))["tokens"]
    length = len(tokens) // NUM_WINDOWS
    windows = [tokens[i * length : (i + 1) * length] for i in range(NUM_WINDOWS)]
    seats = asyncio.Semaphore(num_rows)
    scores = await asyncio.gather(
        *(_score(port, window, lists[i % len(lists)], seats) for i, window in enumerate(windows))
    )
    logprobs = [logprob for of_window in scores for logprob in of_window]
    return math.exp(-sum(logprobs) / len(logprobs))


async def _score(port: int, window: list[int], adapters: AdapterList, seats: asyncio.Semaphore) -> list[float]:
    logprobs: list[float] = []
    async with seats:
        for begin, end in segments(window, LEAD_IN):
            answer = await _post(port, "/completion", forcing_body(window, begin, end) | lora_field(adapters))
            if answer["tokens"] != window[begin:end]:
                raise RuntimeError(f"the server was to generate {window[begin:end]}, but gave {answer['tokens']}")
            logprobs += [float(step["logprob"]) for step in answer["completion_probabilities"]]
    return logprobs


def segments(tokens: Sequence[int], begin: int) -> list[tuple[int, int]]:
    """Cut `tokens` from `begin` on into the longest segments that can be forced, at most MAX_SEGMENT long."""
    found = []
    while begin < len(tokens):
        end = min(begin + MAX_SEGMENT, len(tokens))
        while not _can_force(tokens, begin, end):
            end -= 1
        found.append((begin, end))
        begin = end
    return found


def _can_force(tokens: Sequence[int], begin: int, end: int) -> bool:
    """The penalty reaches back over one token less than the segment has: no token may be within reach of itself."""
    reach = end - begin - 1
    return all(tokens[i] not in tokens[max(i - reach, 0) : i] for i in range(begin, end))


def forcing_body(tokens: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    """Return the request that generates tokens[begin:end] after tokens[:begin] and reports their log-probabilities."""
    count = end - begin
    return {
        "prompt": list(tokens[:begin]),
        "n_predict": count,
        "temperature": 0.0,
        "n_probs": 1,
        "return_tokens": True,
        "ignore_eos": True,
        "cache_prompt": True,
        "logit_bias": [[token, _STEP * (count - rank)] for rank, token in enumerate(tokens[begin:end])],
        "presence_penalty": _PENALTY if count > 1 else 0.0,
        "repeat_last_n": count - 1,
        "repeat_penalty": 1.0,
    }


async def _post(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(payload)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + payload)
        answer_head, _, content = (await reader.read()).partition(b"\r\n\r\n")
        if answer_head.split()[1] != b"200":
            raise HttpError(f"{path}: {answer_head.splitlines()[0].decode()}: {content.decode()}")
        answer: dict[str, Any] = json.loads(content)
        return answer
    finally:
        writer.close()
