"""How long a step takes, for simulations: a fixed cost, and costs for each prompt token, each decode row, and each
token of KV that is read. How well the presets fit: docs/simulation.md.

The KV reads of a decode row are its context. A chunk of a prompt reads its context once for every `tile` of its tokens,
because attention kernels let neighbouring tokens share what was loaded."""

from dataclasses import dataclass

from scheduler.batch import Batch


@dataclass(frozen=True, slots=True)
class CostModel:
    """The duration of a step is linear in what the step computes."""

    step_s: float
    """Paid by every step: reading the weights, launching kernels."""
    prefill_token_s: float
    decode_row_s: float
    kv_token_s: float
    """One token's KV read by one row, over all layers."""
    tile: int = 8
    """Prompt tokens that share one read of their context."""

    def __post_init__(self) -> None:
        if self.step_s <= 0 or min(self.prefill_token_s, self.decode_row_s, self.kv_token_s) < 0 or self.tile < 1:
            raise ValueError(f"a step takes more than 0 s, and nothing in it less than 0 s: {self}")

    def duration_s(self, batch: Batch) -> float:
        """Return how long the step that computes `batch` takes."""
        num_decode = num_prefill = 0
        num_read = 0.0
        for row in batch.rows:
            count = len(row.token_ids)
            if row.is_decode:
                num_decode += 1
                num_read += row.end
            else:
                num_prefill += count
                num_read += self._kv_reads(row.start, count)
        return (
            self.step_s
            + self.prefill_token_s * num_prefill
            + self.decode_row_s * num_decode
            + self.kv_token_s * num_read
        )

    def _kv_reads(self, start: int, count: int) -> float:
        """Token t of the chunk reads start + t + 1 positions, a tile of tokens together; at least all are read once."""
        positions = count * (2 * start + count + 1) / 2
        return max(positions / self.tile, start + count)


CPU_2_CORE = CostModel(step_s=11.5e-3, prefill_token_s=0.235e-3, decode_row_s=0.12e-3, kv_token_s=2.2e-6, tile=8)
"""SmolLM2-135M in bfloat16 on two cores with AVX-512 and bf16 dot products, fitted to measurements of this project."""

GPU_7B = CostModel(step_s=10e-3, prefill_token_s=0.086e-3, decode_row_s=0.02e-3, kv_token_s=0.35e-6, tile=64)
"""Llama-2-7B in float16 on one A100-80GB, derived, not measured.

- A step reads 13.5 GB of weights: 9 ms at three quarters of 2.0 TB/s. Launches and sampling on the host take about one.
- A prompt token costs 2 · 6.7e9 operations: 0.086 ms at half of 312 TFLOP/s.
- A token's KV is 32 layers · 2 · 4096 · 2 bytes = 512 KiB, read in 0.35 µs at 1.5 TB/s.
- A decode row needs the same operations, hidden for the most part behind reading the weights: 0.02 ms is left.

Set beside what was published: 32 rows with 350 tokens of context take 14.6 ms here; dLoRA (Wu et al., OSDI 2024)
reckons with 15 ms for a step with merged weights, in the profile that comes with its artifact. 220 rows with that
context take 41 ms, and with 0.8 prompt tokens for each sampled one that makes 3,900 sampled and 7,000 tokens/s in all;
vLLM without LoRA reached 5,510 in all on ShareGPT, with the same model and card (vLLM's pull request 11267).
"""

PRESETS: dict[str, CostModel] = {"cpu-2-core": CPU_2_CORE, "gpu-7b": GPU_7B}
"""By the names that the command line knows them by."""
