"""Ours against llama-server, request by request: `make test-differential`. Ends with 1 where they differ in a way that
docs/compatibility.md does not tell of.

usage: python -m tests.differential [--parts streams,answers,tokens,templates,names] [--prompts N] [--tokens N] …

- streams: greedy float32 token streams of the demo model under adapter lists;
- answers: status, fields, order and types of answers;
- tokens: /tokenize and /detokenize of the demo model, of Gemma 3 270M and of a tiny vocabulary of each kind;
- templates: /apply-template under the demo model's template and those that llama.cpp tests its own engine with;
- names: /apply-template under the templates that --chat-template knows by name.
"""

import argparse
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from docs.demo.model_path import demo_model_path
from model.tokens.pre_tokenizers import PRE_TOKENIZERS
from tests.differential.answers import compare_answers
from tests.differential.pair import Pair, both_running, our_server, peer_server, running
from tests.differential.prompts import LISTS, PROMPTS
from tests.differential.templates import TemplateModel, compare_templates, named_models, template_models
from tests.differential.token_streams import MAX_TIE_GAP, Comparison, compare_streams
from tests.differential.tokenisation import Tally, compare_tokenisation
from tests.differential.vocabularies import write_byte_level, write_sentencepiece
from tests.load.demo_server import ROOT
from tests.load.peer import Peer, find_peer, quantise
from tests.load.peer_adapters import make_adapter
from tests.load.peer_servers import Setup
from tests.model.gemma import GemmaNotInstalled, cache_folder, gemma_path

_B_DEVIATION = 0.02
"""Of the adapters' values of B: enough to change most texts."""
_MAX_SHOWN = 5
"""Differences of one kind that are printed."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every part needs."""

    peer: Peer
    folder: Path
    """Where large files are kept."""
    scratch: Path
    num_prompts: int
    num_tokens: int
    num_random: int

    @property
    def model(self) -> Path:
        """The demo model, dequantised: the same float32 weights for both."""
        return quantise(self.peer, demo_model_path(), self.folder / "models", ("F32",))["F32"]

    def adapters(self) -> list[Path]:
        """Two adapters of rank 16 on all linear layers, as GGUF files."""
        made = (make_adapter(self.model, self.scratch, seed, _B_DEVIATION) for seed in (0, 1))
        return [files.gguf["F32"] for files in made]


def main() -> None:
    """Compare, print, and say by the exit code whether all is well."""
    options = _options()
    names = options.parts.split(",")
    if unknown := set(names) - set(PARTS):
        raise SystemExit(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    num_bad, began_s = 0, time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(
            find_peer(options.folder), options.folder, Path(scratch), options.prompts, options.tokens, options.random
        )
        for name in names:
            print(f"\n== {name}", flush=True)
            num_bad += PARTS[name](bench)
    print(f"\n{num_bad} differences, {time.perf_counter() - began_s:.0f} s")
    sys.exit(1 if num_bad else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="ours against llama-server, request by request")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="of the streams")
    parser.add_argument("--tokens", type=int, default=48, help="generated for each prompt")
    parser.add_argument("--random", type=int, default=20, help="random texts to tokenise, beside the fixed ones")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "peer", help="where what is made is kept")
    return parser.parse_args()


def _streams(bench: Bench) -> int:
    """Compare token streams under adapter lists; return how many partings are no near-ties."""
    print(f"{'scales':<14}{'equal':>8}{'near-ties':>11}{'differences':>13}{'max Δ logprob':>15}{'texts changed':>15}")
    base: Comparison | None = None
    num_bad = 0
    with both_running(bench.peer, bench.model, bench.adapters(), Setup("streams", 8, 1024, 2), bench.scratch) as pair:
        prompts = [_ids(pair, text) for text in PROMPTS[: bench.num_prompts]]
        for scales in LISTS:
            found = compare_streams(pair, scales, prompts, bench.num_tokens)
            base = base or found
            changed = sum(text != other for text, other in zip(found.texts, base.texts, strict=True))
            print(
                f"{' '.join(f'{scale:g}' for scale in scales):<14}{found.num_tokens:>8}{found.num_ties:>11}"
                f"{found.num_differences:>13}{found.max_logprob_difference:>15.1e}{changed:>15}",
                flush=True,
            )
            for parting in found.partings:
                print(f"    {'near-tie' if parting.is_tie else 'difference'}: {parting}")
            num_bad += found.num_differences
    print(f"(a near-tie: the log-probabilities of both candidates are within {MAX_TIE_GAP} on both servers)")
    return num_bad


def _ids(pair: Pair, text: str) -> list[int]:
    ids = pair.peer.post("/tokenize", {"content": text})["tokens"]
    assert isinstance(ids, list)
    return [token_id for token_id in ids if isinstance(token_id, int)]


def _answers(bench: Bench) -> int:
    """Compare the forms of answers; return how many differences are not documented."""
    num_bad = 0
    with both_running(bench.peer, bench.model, bench.adapters(), Setup("answers", 4, 1024, 2), bench.scratch) as pair:
        for compared in compare_answers(pair):
            print(f"{compared.call.name:<40}{len(compared.documented):>4} documented{len(compared.others):>4} others")
            for difference in compared.others:
                print(f"    {difference.kind}: {difference.path} {difference.detail}", flush=True)
            num_bad += len(compared.others)
    return num_bad


def _tokens(bench: Bench) -> int:
    """Compare tokenisation under all vocabularies; return how many answers differ."""
    (folder := bench.scratch / "vocabularies").mkdir()
    written = [("SmolLM2", demo_model_path()), *write_sentencepiece(folder), *write_byte_level(folder)]
    models = [TemplateModel(name, path) for name, path in written]
    try:
        models.append(TemplateModel("Gemma 3 270M", gemma_path(cache_folder())))
    except GemmaNotInstalled as missing:
        print(f"skipped: Gemma 3 270M ({missing})")

    def compare(pair: Pair, name: str) -> Tally:
        if PRE_TOKENIZERS.get(name.removeprefix("bpe "), PRE_TOKENIZERS["default"]).normalizer is None:
            return compare_tokenisation(pair, name, bench.num_random)
        return compare_tokenisation(pair, name, bench.num_random, partial(unicodedata.normalize, "NFC"))

    return _tallies(bench, models, compare)


def _templates(bench: Bench) -> int:
    """Compare prompts under all templates; return how many differ."""
    (bench.folder / "tiny").mkdir(parents=True, exist_ok=True)
    models = [TemplateModel("SmolLM2", demo_model_path()), *template_models(bench.folder)]
    return _tallies(bench, models, compare_templates)


def _names(bench: Bench) -> int:
    """Compare prompts under the templates that have names; return how many differ."""
    (folder := bench.scratch / "named").mkdir()
    return _tallies(bench, list(named_models(folder)), compare_templates)


def _tallies(bench: Bench, models: Sequence[TemplateModel], compare: Callable[[Pair, str], Tally]) -> int:
    num_bad = 0
    for tally in _compare_models(bench, models, compare):
        print(
            f"{tally.name:<44}{tally.num_compared:>6} compared{tally.num_documented:>4} documented"
            f"{len(tally.differences):>5} differ",
            flush=True,
        )
        for difference in tally.differences[:_MAX_SHOWN]:
            print(f"  {difference}")
        num_bad += len(tally.differences)
    return num_bad


def _compare_models(
    bench: Bench, models: Sequence[TemplateModel], compare: Callable[[Pair, str], Tally]
) -> Iterator[Tally]:
    """Yield what comes out for each model. Ours goes from model to model as it runs; the peer starts for each."""
    setup = Setup("models", 2, 1024)
    folders = [flag for folder in {model.path.parent for model in models} for flag in ("--model-dir", str(folder))]
    with running(our_server(models[0].path, (), *folders), setup, bench.scratch / "ours.log") as ours:
        for model in models:
            loaded = ours.post("/admin/models/load", {"model": str(model.path)})
            assert loaded.status == 200, f"{model.name}: {loaded}"
            contender = peer_server(bench.peer, model.path, (), *model.peer_flags)
            with running(contender, setup, bench.scratch / "peer.log") as peer:
                yield compare(Pair(ours, peer), model.name)


PARTS: dict[str, Callable[[Bench], int]] = {
    "streams": _streams,
    "answers": _answers,
    "tokens": _tokens,
    "templates": _templates,
    "names": _names,
}


if __name__ == "__main__":
    main()
