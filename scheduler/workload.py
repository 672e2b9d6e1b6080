"""What a simulation serves: who sends requests of which list, when, and how long they are. Seeded: the same workload
and seed give the same requests under every policy.

Requests come from *open* sources, which send whatever happens to them (Poisson, on/off bursts, a recorded trace), and
from *closed-loop clients*, each of which sends its next request when the last one is answered. Nothing here knows the
scheduler."""

import heapq
import itertools
import math
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol


class Arrival(NamedTuple):
    """One request as it is sent."""

    arrival_s: float
    list_name: str
    prompt_tokens: int
    output_tokens: int
    client: int | None = None
    """The closed-loop client that sent it, and waits for its answer."""


class Lengths(Protocol):
    """A distribution of token counts."""

    def draw(self, random: Random) -> int:
        """Return a count of at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same count."""

    tokens: int

    def draw(self, random: Random) -> int:
        """Return the count."""
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every count from `least` to `most`, both included, alike."""

    least: int
    most: int

    def draw(self, random: Random) -> int:
        """Return a count."""
        return self.least + int(random.random() * (self.most - self.least + 1))


@dataclass(frozen=True, slots=True)
class Geometric:
    """As if generation ended after each token with the same probability."""

    mean: float

    def draw(self, random: Random) -> int:
        """Return a count."""
        if self.mean <= 1:
            return 1
        return 1 + int(math.log(1 - random.random()) / math.log(1 - 1 / self.mean))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Few very long ones among many short: what prompts of chats look like. `sigma` is that of the logarithm."""

    median: float
    sigma: float

    def draw(self, random: Random) -> int:
        """Return a count."""
        return max(1, round(self.median * math.exp(self.sigma * random.gauss(0, 1))))


_LENGTHS = "fixed:N, uniform:LEAST:MOST, geometric:MEAN or lognormal:MEDIAN:SIGMA"


def parse_lengths(text: str) -> Lengths:
    """Read `fixed:60`, `uniform:20:100`, `geometric:64` or `lognormal:64:1.0`. Raises ValueError where it is none."""
    kind, *numbers = text.split(":")
    try:
        match kind, [float(number) for number in numbers]:
            case "fixed", [tokens] if tokens >= 1 and tokens.is_integer():
                return Fixed(int(tokens))
            case "uniform", [least, most] if 1 <= least <= most and least.is_integer() and most.is_integer():
                return Uniform(int(least), int(most))
            case "geometric", [mean] if 1 <= mean < math.inf:
                return Geometric(mean)
            case "lognormal", [median, sigma] if 1 <= median < math.inf and 0 <= sigma <= 4:
                return Lognormal(median, sigma)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"a distribution of lengths is {_LENGTHS}, counts of at least 1, but got {text!r}")


@dataclass(frozen=True, slots=True)
class ListMix:
    """Which list a request names: a weight for each."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    _cumulative: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cumulative", tuple(itertools.accumulate(self.weights)))

    def draw(self, random: Random) -> str:
        """Return the name of a list."""
        place = bisect(self._cumulative, random.random() * self._cumulative[-1])
        return self.names[min(place, len(self.names) - 1)]


def one_list(name: str) -> ListMix:
    """All requests name the same list."""
    return ListMix((name,), (1.0,))


def zipf_lists(count: int, exponent: float) -> ListMix:
    """Return `count` lists, the k-th with weight 1 / k^exponent; exponent 0 makes them even."""
    names = tuple(f"list-{rank}" for rank in range(1, count + 1))
    return ListMix(names, tuple(rank**-exponent for rank in range(1, count + 1)))


@dataclass(frozen=True, slots=True)
class Shape:
    """What a request of a source looks like."""

    lists: ListMix
    prompt: Lengths
    output: Lengths

    def draw(self, random: Random, arrival_s: float, client: int | None = None) -> Arrival:
        """Return a request that is sent at `arrival_s`."""
        name = self.lists.draw(random)
        return Arrival(arrival_s, name, self.prompt.draw(random), self.output.draw(random), client)


class OpenSource(Protocol):
    """Sends requests whatever happens to them."""

    def arrivals(self, random: Random) -> Iterator[Arrival]:
        """Yield requests in order of time, perhaps without end."""
        ...


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent requests, `rate` a second on average."""

    rate: float
    shape: Shape

    def arrivals(self, random: Random) -> Iterator[Arrival]:
        """Yield requests without end."""
        now = 0.0
        while True:
            now += random.expovariate(self.rate)
            yield self.shape.draw(random, now)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Poisson at `rate` a second while on, nothing while off; how long each lasts is exponential with the mean given.
    It begins off."""

    rate: float
    on_s: float
    off_s: float
    shape: Shape

    def arrivals(self, random: Random) -> Iterator[Arrival]:
        """Yield requests without end."""
        end = 0.0
        while True:
            now = end + random.expovariate(1 / self.off_s)
            end = now + random.expovariate(1 / self.on_s)
            now += random.expovariate(self.rate)
            while now < end:
                yield self.shape.draw(random, now)
                now += random.expovariate(self.rate)


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests that are known beforehand, in order of time: a trace file, or a test's."""

    recorded: tuple[Arrival, ...]

    def arrivals(self, random: Random) -> Iterator[Arrival]:
        """Yield the recorded requests."""
        return iter(self.recorded)


@dataclass(frozen=True, slots=True)
class Clients:
    """`count` closed-loop clients: each waits for its answer, thinks `think_s` seconds, and sends its next request.

    Their first requests come at `start_s`.
    """

    count: int
    shape: Shape
    think_s: float = 0.0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that sends requests in one simulation."""

    name: str
    sources: tuple[OpenSource, ...] = ()
    clients: tuple[Clients, ...] = ()


class Traffic:
    """The requests of one run of a workload, in order of time. `max_requests` ends it early."""

    def __init__(self, workload: Workload, seed: int, max_requests: int | None = None) -> None:
        self._left = math.inf if max_requests is None else max_requests
        streams = (source.arrivals(Random(f"{seed} source {index}")) for index, source in enumerate(workload.sources))
        self._open = heapq.merge(*streams, key=lambda arrival: arrival.arrival_s)
        self._next_open = next(self._open, None)
        # Each client has randomness of its own, so that its n-th request does not depend on the policy.
        groups = [group for group in workload.clients for _ in range(group.count)]
        self._clients = [(group, Random(f"{seed} client {index}")) for index, group in enumerate(groups)]
        self._ready = [(group.start_s, index) for index, group in enumerate(groups)]
        heapq.heapify(self._ready)

    @property
    def next_s(self) -> float:
        """When the next request comes; infinity where none is known to come."""
        if self._left <= 0:
            return math.inf
        open_s = math.inf if self._next_open is None else self._next_open.arrival_s
        return min(open_s, self._ready[0][0]) if self._ready else open_s

    def take(self) -> Arrival:
        """Take out the next request; `next_s` must be finite."""
        self._left -= 1
        arrival = self._next_open
        if self._ready and (arrival is None or self._ready[0][0] < arrival.arrival_s):
            now, client = heapq.heappop(self._ready)
            group, random = self._clients[client]
            return group.shape.draw(random, now, client)
        assert arrival is not None, "no request is left"
        self._next_open = next(self._open, None)
        return arrival

    def answered(self, client: int, now: float, *, pause_s: float = 0.0) -> None:
        """Let a client know that its request has ended; it sends the next after thinking, at least `pause_s` later."""
        heapq.heappush(self._ready, (now + max(self._clients[client][0].think_s, pause_s), client))
