"""Whether both servers turn text into the same tokens, and tokens into the same text."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

from tests.differential.corpus import INVALID_BODIES, texts
from tests.differential.pair import Answer, Json, Pair

_WAYS = [
    {"add_special": add_special, "parse_special": parse_special, "with_pieces": with_pieces}
    for with_pieces, add_special, parse_special in product((True, False), (False, True), (False, True))
]
_NUM_RANDOM_IDS = 40
"""Random sequences of tokens, whose bytes are rarely text."""

_HTML = "</s>"


@dataclass
class Tally:
    """How many answers were compared, and which differ."""

    name: str
    num_compared: int = 0
    num_documented: int = 0
    """Differences that docs/compatibility.md has a line for."""
    differences: list[str] = field(default_factory=list)

    def compare(self, what: str, ours: object, peers: object) -> None:
        """Count one comparison, and note it where they differ."""
        self.num_compared += 1
        if ours != peers:
            self.differences.append(f"{what}\n    ours          {_short(ours)}\n    llama-server  {_short(peers)}")


def compare_tokenisation(
    pair: Pair, name: str, num_random: int, normalise: Callable[[str], str] = lambda text: text
) -> Tally:
    """Compare /tokenize in all its ways, and /detokenize of what it says and of random tokens. Three differences
    are documented: ours puts no BOS before a text that begins with it, brings a text into the form that the model's
    own tokenizer brings it into, which is `normalise` here, and does not take Gemma's `</s>` for a special token.
    """
    tally = Tally(name)
    bos_text = str(pair.peer.get("/props")["bos_token"])
    for text in texts(num_random):
        for way in _WAYS:
            ours, peers = (_outcome(answer) for answer in pair.post("/tokenize", {"content": text, **way}))
            if ours != peers:
                normalised = _outcome(pair.peer.post("/tokenize", {"content": normalise(text), **way}))
                gets_bos = way["add_special"] and way["parse_special"] and text.startswith(bos_text)
                is_html = _HTML in text and not way["parse_special"]
                peers = ours if is_html else _with_one_bos(normalised) if gets_bos else normalised
                tally.num_documented += ours == peers
            said = " ".join(name for name, is_on in way.items() if is_on)
            tally.compare(f"/tokenize {text!r} {said}", ours, peers)
        _compare_text(tally, pair, _ids(pair.peer.post("/tokenize", {"content": text})))
    _compare_ids(tally, pair)
    _compare_bodies(tally, pair)
    return tally


def _with_one_bos(outcome: Json) -> Json:
    """Leave out BOS in front of BOS."""
    return outcome[1:] if isinstance(outcome, list) and outcome[:1] == outcome[1:2] else outcome


def _compare_ids(tally: Tally, pair: Pair) -> None:
    """Compare the texts of random tokens."""
    num_tokens, rng = _vocab_size(pair), random.Random(0)
    for _ in range(_NUM_RANDOM_IDS):
        _compare_text(tally, pair, [rng.randrange(num_tokens) for _ in range(rng.randint(1, 8))])


def _compare_bodies(tally: Tally, pair: Pair) -> None:
    """Compare what is made of lists of texts and tokens, and of bodies that are no JSON."""
    for mixed in (["a ", 5, "<|im_start|>", 7], [1, 2, 3], ["", ""], []):
        ours, peers = pair.post("/tokenize", {"content": mixed, "add_special": True})
        tally.compare(f"/tokenize {mixed!r}", _outcome(ours), _outcome(peers))
    for body in INVALID_BODIES:
        outcomes = [_outcome(server.post_raw("/tokenize", body)) for server in (pair.ours, pair.peer)]
        tally.compare(f"/tokenize {body!r}", *outcomes)


def _compare_text(tally: Tally, pair: Pair, ids: Sequence[Json]) -> None:
    ours, peers = pair.post("/detokenize", {"tokens": list(ids)})
    tally.compare(f"/detokenize {list(ids)!r}", ours["content"], peers["content"])


def _outcome(answer: Answer) -> Json:
    """Tokens where there are some, else the status: words of JSON libraries are their own."""
    return answer["tokens"] if answer.status == 200 else answer.status


def _ids(answer: Answer) -> list[Json]:
    ids = answer["tokens"]
    assert isinstance(ids, list)
    return ids


def _vocab_size(pair: Pair) -> int:
    match pair.peer.get("/v1/models").body:
        case {"data": [{"meta": {"n_vocab": int(size)}}]}:
            return size
    raise AssertionError("llama-server does not say how many tokens it has")


def _short(value: object, limit: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"
