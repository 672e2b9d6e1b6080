"""The base model's speed on a server with ten loaded adapters against one without any: `make bench-loaded`. The last
line is JSON.

usage: python -m tests.load.bench_loaded [--pairs N] [--clients N] [--tokens N] [server flags …]

Both servers run all the time and get the same requests in turn, first the one first, then the other, so that whatever
else the machine does falls on both alike; an idle server costs nothing. A round is a fixed amount of work: every client
sends one request of the base model, all at once, and the round ends with the last token. The ratio is the median of
the pairs': above 1, the server with adapters was faster.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from docs.demo.model_path import demo_model_path
from model.checkpoint.weights import load_checkpoint
from tests.load.bench import FIRST_ID, LAST_ID
from tests.load.client import get_json, stream_completion
from tests.load.demo_server import start_server, stop

NUM_ADAPTERS, RANK = 10, 16
_MODULES = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


def write_adapters(folder: Path, model: Path) -> list[Path]:
    """Write random adapters of all linear modules of the layers, as PEFT saves them."""
    checkpoint = load_checkpoint(model)
    generator = torch.Generator().manual_seed(0)
    modules = [name for names in _MODULES.values() for name in names]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules}
    directories = []
    for number in range(NUM_ADAPTERS):
        tensors = {}
        for layer in range(checkpoint.config.num_layers):
            for block, names in _MODULES.items():
                for name in names:
                    module = f"model.layers.{layer}.{block}.{name}"
                    out_features, in_features = checkpoint.tensors[f"{module}.weight"].shape
                    for half, shape in (("A", (RANK, in_features)), ("B", (out_features, RANK))):
                        values = 0.01 * torch.randn(shape, generator=generator)
                        tensors[f"base_model.model.{module}.lora_{half}.weight"] = values.to(torch.bfloat16)
        directories.append(folder / f"adapter{number}")
        directories[-1].mkdir(parents=True)
        (directories[-1] / "adapter_config.json").write_text(json.dumps(config))
        safetensors.torch.save_file(tensors, directories[-1] / "adapter_model.safetensors")
    return directories


async def round_s(port: int, num_clients: int, num_tokens: int, seed: int) -> float:
    """Send one request of the base model for each client, at once; return the seconds until all are answered."""
    rng = random.Random(seed)
    bodies: list[dict[str, Any]] = [
        {
            "prompt": [rng.randint(FIRST_ID, LAST_ID) for _ in range(48)],
            "n_predict": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "cache_prompt": False,
        }
        for _ in range(num_clients)
    ]
    start_s = time.perf_counter()
    await asyncio.gather(*(stream_completion(port, body) for body in bodies))
    return time.perf_counter() - start_s


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu_s(self) -> float:
        """Processor time that it has taken so far: what other programs on the machine cannot take from it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Round:
    """What a round took."""

    wall_s: float
    cpu_s: float


def measure(
    bare: Server, loaded: Server, num_pairs: int, num_clients: int, num_tokens: int
) -> list[tuple[Round, Round]]:
    """Return pairs of rounds, without adapters and with, after one that is not counted."""
    pairs = []
    for pair in range(-1, num_pairs):
        taken = {}
        for server in (bare, loaded) if pair % 2 else (loaded, bare):
            before_s = server.cpu_s()
            wall_s = asyncio.run(round_s(server.port, num_clients, num_tokens, pair))
            taken[server.port] = Round(wall_s, server.cpu_s() - before_s)
        if pair >= 0:
            pairs.append((taken[bare.port], taken[loaded.port]))
    return pairs


def describe(pairs: Sequence[tuple[Round, Round]], num_tokens: int) -> dict[str, Any]:
    """Return the figures; `num_tokens` are those of a round. On a busy machine the fastest rounds tell most."""
    ratios = [bare.wall_s / loaded.wall_s for bare, loaded in pairs]
    low, _, high = statistics.quantiles(ratios, n=4)
    bare_s, loaded_s = (fastest([pair[side].wall_s for pair in pairs]) for side in (0, 1))
    return {
        "ratio": round(statistics.median(ratios), 4),
        "ratio_quartiles": [round(low, 4), round(high, 4)],
        "ratio_of_fastest_quarter": round(bare_s / loaded_s, 4),
        "ratio_of_cpu_time": round(statistics.median(bare.cpu_s / loaded.cpu_s for bare, loaded in pairs), 4),
        "pairs": len(pairs),
        "tokens_per_s_without": round(num_tokens / bare_s, 1),
        "tokens_per_s_with_ten": round(num_tokens / loaded_s, 1),
    }


def fastest(times_s: Sequence[float]) -> float:
    """The mean of the fastest quarter."""
    return statistics.mean(sorted(times_s)[: max(len(times_s) // 4, 1)])


def main() -> None:
    """Run both servers, measure, and print."""
    parser = argparse.ArgumentParser(description="the price of loaded adapters for requests that use none")
    parser.add_argument("--pairs", type=int, default=24, help="pairs of rounds")
    parser.add_argument("--clients", type=int, default=8, help="requests of a round")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that each request generates")
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        loras = [flag for path in write_adapters(Path(folder), demo_model_path()) for flag in ("--lora", str(path))]
        servers = []
        try:
            servers.append(Server(*start_server(demo_model_path(), flags)))
            servers.append(Server(*start_server(demo_model_path(), [*loras, "--lora-init-without-apply", *flags])))
            bare, loaded = servers
            assert len(asyncio.run(get_json(loaded.port, "/lora-adapters"))) == NUM_ADAPTERS
            pairs = measure(bare, loaded, options.pairs, options.clients, options.tokens)
        finally:
            for server in servers:
                stop(server.process)
    for index, (without, beside) in enumerate(pairs):
        print(
            f"pair {index:2}: {without.wall_s:.3f} s ({without.cpu_s:.2f} s of processors) without adapters, "
            f"{beside.wall_s:.3f} s ({beside.cpu_s:.2f}) with ten, ratio {without.wall_s / beside.wall_s:.3f}"
        )
    print(json.dumps(describe(pairs, options.clients * options.tokens)))


if __name__ == "__main__":
    main()
