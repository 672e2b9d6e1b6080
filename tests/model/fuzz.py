"""Fuzz the adapter readers for a while: `python -m tests.model.fuzz --minutes 30`, as `make fuzz` does.

Rounds of random files for each reader in turn, every round with a seed of its own, which is printed. It ends at the
first file that breaks the property of fuzz_property.py, or when time is up. The last line is JSON.
"""

import argparse
import faulthandler
import json
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.model.fuzz_bytes import DrawnFile
from tests.model.fuzz_config import configs
from tests.model.fuzz_corpus import FAMILIES, Target, make_target
from tests.model.fuzz_gguf import gguf_files, gguf_parts
from tests.model.fuzz_property import outcome_of
from tests.model.fuzz_safetensors import safetensors_files

READERS = ("config", "safetensors", "gguf")
EXAMPLES_A_ROUND = 200
ROUND_LIMIT_S = 900


@dataclass(slots=True)
class Tally:
    """What became of the files for one reader."""

    loaded: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    """By what is left of a message without names and numbers."""

    def count(self, refusal: str, seconds: float) -> None:
        """Count one file."""
        self.slowest_s = max(self.slowest_s, seconds)
        if refusal:
            self.refused += 1
            self.refusals[re.sub(r"'[^']*'|\"[^\"]*\"|/\S+|[\d.]+", "…", refusal)[:80]] += 1
        else:
            self.loaded += 1

    def summary(self) -> dict[str, float]:
        """Return the counts."""
        counts = {"loaded": self.loaded, "refused": self.refused, "kinds_of_refusal": len(self.refusals)}
        return {**counts, "slowest_s": round(self.slowest_s, 2)}


class Fuzzer:
    """Three readers, the tiny models they read for, and the folder that holds the file being read."""

    def __init__(self, folder: Path) -> None:
        self.targets = [make_target(family, folder) for family in FAMILIES]
        self.tallies = {name: Tally() for name in READERS}
        self._gguf = folder / "fuzzed.gguf"
        self._peft = folder / "fuzzed"
        self._peft.mkdir()

    def run(self, reader: str, number: int, examples: int) -> None:
        """Try `examples` files, drawn from the seed `number`."""
        checks: dict[str, Callable[[st.DataObject], None]] = {
            "config": self._config,
            "safetensors": self._safetensors,
            "gguf": self._gguf_file,
        }
        limits = settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        seed(number)(limits(given(st.data())(checks[reader])))()

    def write_seeds(self) -> Iterator[tuple[Path, Target]]:
        """Write the sound adapters, one after the other to the same path."""
        for target in self.targets:
            for chosen in target.peft:
                self._write_peft(json.dumps(dict(chosen.config)).encode(), safetensors.torch.save(dict(chosen.tensors)))
                yield self._peft, target
            for seed_file in target.gguf:
                self._gguf.write_bytes(gguf_parts(seed_file).assemble())
                yield self._gguf, target

    def _config(self, draws: st.DataObject) -> None:
        target = self._target(draws)
        chosen = target.peft[draws.draw(st.integers(0, len(target.peft) - 1))]
        file = draws.draw(configs(chosen))
        self._write_peft(file.content, safetensors.torch.save(dict(chosen.tensors)))
        self._check("config", self._peft, target, file)

    def _safetensors(self, draws: st.DataObject) -> None:
        target = self._target(draws)
        chosen = target.peft[draws.draw(st.integers(0, len(target.peft) - 1))]
        file = draws.draw(safetensors_files(chosen))
        self._write_peft(json.dumps(dict(chosen.config)).encode(), file.content)
        self._check("safetensors", self._peft, target, file)

    def _gguf_file(self, draws: st.DataObject) -> None:
        target = self._target(draws)
        file = draws.draw(gguf_files(target.gguf))
        self._gguf.write_bytes(file.content)
        self._check("gguf", self._gguf, target, file)

    def _write_peft(self, config: bytes, weights: bytes) -> None:
        (self._peft / "adapter_config.json").write_bytes(config)
        (self._peft / "adapter_model.safetensors").write_bytes(weights)

    def _target(self, draws: st.DataObject) -> Target:
        return self.targets[draws.draw(st.integers(0, len(self.targets) - 1))]

    def _check(self, reader: str, path: Path, target: Target, file: DrawnFile) -> None:
        start = time.monotonic()
        refusal = outcome_of(path, target, file)
        self.tallies[reader].count(refusal, time.monotonic() - start)


def main() -> int:
    """Fuzz until time is up or something breaks; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9, help="of the first round")
    parser.add_argument("--reader", choices=READERS, help="this one only")
    parser.add_argument("--examples", type=int, default=EXAMPLES_A_ROUND, help="files in a round")
    parser.add_argument("--verbose", action="store_true", help="list the kinds of refusals at the end")
    args = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)  # for tiny models threads are in the way
    warnings.simplefilter("ignore")  # of PEFT, while the sound adapters are made
    folder = Path(tempfile.mkdtemp(prefix="cohort-fuzz-"))
    fuzzer = Fuzzer(folder)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Possible (nested set|set difference)", FutureWarning)
    readers = [args.reader] if args.reader else list(fuzzer.tallies)
    print(f"files are read in {folder}, which stays where one breaks something; seed {args.seed}", flush=True)
    failure = _rounds(fuzzer, readers, args.seed, args.examples, time.monotonic() + 60 * args.minutes)
    if args.verbose:
        for reader in readers:
            for message, count in fuzzer.tallies[reader].refusals.most_common():
                print(f"{reader:12}{count:8}  {message}")
    summary = {reader: fuzzer.tallies[reader].summary() for reader in readers}
    print(json.dumps({"minutes": args.minutes, "seed": args.seed, **summary, **_process(), "failure": failure}))
    if failure is None:
        shutil.rmtree(folder)
    return 1 if failure else 0


def _rounds(fuzzer: Fuzzer, readers: list[str], number: int, examples: int, end: float) -> str | None:
    """Run rounds; return which round failed."""
    while time.monotonic() < end:
        for reader in readers:
            faulthandler.dump_traceback_later(ROUND_LIMIT_S, exit=True)  # busy where no signal is heeded
            try:
                fuzzer.run(reader, number, examples)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                sys.excepthook(type(error), error, error.__traceback__)
                print(f"again with: --reader {reader} --seed {number} --examples {examples}", file=sys.stderr)
                return f"{reader} {number}"
        print(f"{number}: {' '.join(f'{reader} {fuzzer.tallies[reader].summary()}' for reader in readers)}", flush=True)
        number += 1
    return None


def _process() -> dict[str, object]:
    """Return the peak of the process's memory, and how many files it has open."""
    status, descriptors = Path("/proc/self/status"), Path("/proc/self/fd")
    peak = re.search(r"VmHWM:\s*(.+)", status.read_text()) if status.exists() else None
    num_files = len(list(descriptors.iterdir())) if descriptors.exists() else None
    return {"peak_memory": peak[1] if peak else None, "open_files": num_files}


if __name__ == "__main__":
    sys.exit(main())
