"""Whether both servers generate the same tokens, greedily, and by how much the logits of two candidates differ where
they part.

Two servers that add the same float32 products in another order differ in the last digits of their logits. Where the two
most likely tokens are closer to each other than that, either may come first: a near-tie. Such a place is counted, and
the comparison goes on from the peer's token. Anything else is a difference.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tests.differential.pair import Answer, Pair, Server

MAX_TIE_GAP = 0.005
"""Of the log-probabilities of two candidates, on both servers: as far as they may be apart in a near-tie."""
NUM_CANDIDATES = 5
"""Of each token, as many as are asked for."""

Scales = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token and the log-probabilities of the most likely ones at its place."""

    token_id: int
    logprobs: dict[int, float]


@dataclass(frozen=True, slots=True)
class Parting:
    """A place where the streams part; the gaps are each server's, of its own token over the other's."""

    position: int
    our_token: int
    peer_token: int
    our_gap: float
    peer_gap: float

    @property
    def is_tie(self) -> bool:
        """Whether the two candidates are as good as equal, on both servers."""
        return max(abs(self.our_gap), abs(self.peer_gap)) <= MAX_TIE_GAP


@dataclass
class Comparison:
    """What came out for one adapter list."""

    scales: Scales
    num_tokens: int = 0
    """As many as were compared and are equal."""
    max_logprob_difference: float = 0.0
    """Of the tokens that both generated."""
    partings: list[Parting] = field(default_factory=list)
    texts: list[tuple[int, ...]] = field(default_factory=list)
    """The peer's tokens, by prompt."""

    @property
    def num_ties(self) -> int:
        """How many partings are near-ties."""
        return sum(parting.is_tie for parting in self.partings)

    @property
    def num_differences(self) -> int:
        """How many are not."""
        return len(self.partings) - self.num_ties


def compare_streams(pair: Pair, scales: Scales, prompts: Sequence[Sequence[int]], num_tokens: int) -> Comparison:
    """Generate `num_tokens` for each prompt (token ids) under the adapter list `scales` on both servers."""
    comparison = Comparison(scales, texts=[() for _ in prompts])
    waiting = list(enumerate(map(tuple, prompts)))
    lengths = [len(prompt) for prompt in prompts]
    while waiting:
        bodies = [_body(scales, prompt, num_tokens - (len(prompt) - lengths[index])) for index, prompt in waiting]
        ours, peers = _generate(pair.ours, bodies), _generate(pair.peer, bodies)
        again = []
        for (index, prompt), our_tokens, peer_tokens in zip(waiting, ours, peers, strict=True):
            taken = _take_equal(comparison, our_tokens, peer_tokens)
            continued = (*prompt, *(token.token_id for token in peer_tokens[: taken + 1]))
            comparison.texts[index] = continued[lengths[index] :]
            if taken == len(peer_tokens):
                continue
            parting = parting_of(taken, our_tokens[taken], peer_tokens[taken])
            at = len(continued) - lengths[index] - 1
            comparison.partings.append(replace(parting, position=at))
            if parting.is_tie and at + 1 < num_tokens:
                again.append((index, continued))
        waiting = again
    return comparison


def _take_equal(comparison: Comparison, ours: Sequence[Token], peers: Sequence[Token]) -> int:
    """Count the equal tokens that both streams begin with, and note how far their log-probabilities are apart."""
    for position, (our, other) in enumerate(zip(ours, peers, strict=True)):
        if our.token_id != other.token_id:
            return position
        comparison.num_tokens += 1
        difference = abs(our.logprobs[our.token_id] - other.logprobs[our.token_id])
        comparison.max_logprob_difference = max(comparison.max_logprob_difference, difference)
    return len(peers)


def parting_of(position: int, our: Token, other: Token) -> Parting:
    """Return how clearly each server prefers its own token. A token that is not among the candidates is infinitely
    worse."""
    return Parting(position, our.token_id, other.token_id, _gap(our, other.token_id), _gap(other, our.token_id))


def _gap(token: Token, rival: int) -> float:
    return token.logprobs[token.token_id] - token.logprobs.get(rival, float("-inf"))


def _body(scales: Scales, prompt: Sequence[int], num_tokens: int) -> dict[str, object]:
    return {
        "prompt": list(prompt),
        "n_predict": num_tokens,
        "temperature": 0,
        "n_probs": NUM_CANDIDATES,
        "return_tokens": True,
        "ignore_eos": True,
        "cache_prompt": False,
        "lora": [{"id": index, "scale": scale} for index, scale in enumerate(scales)],
    }


def _generate(server: Server, bodies: Sequence[dict[str, object]]) -> list[list[Token]]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: server.post("/completion", body), bodies))
    return [list(_tokens(answer)) for answer in answers]


def _tokens(answer: Answer) -> Iterator[Token]:
    assert answer.status == 200, answer
    probabilities = answer["completion_probabilities"]
    assert isinstance(probabilities, list)
    for entry in probabilities:
        match entry:
            case {"id": int(token_id), "logprob": int() | float() as logprob, "top_logprobs": list(top)}:
                candidates = {
                    int(one["id"]): float(one["logprob"])  # type: ignore[arg-type]
                    for one in top
                    if isinstance(one, dict)
                }
                yield Token(token_id, candidates | {token_id: float(logprob)})
            case _:
                raise AssertionError(f"no token: {entry}")
