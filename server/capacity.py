"""How much a server takes on: slots, context and KV blocks, from the settings, the model and the memory that is free.
And its threads.

With a context size, a slot's context is its share of it, as in llama-server. Without one, every request may use the
model's trained context, and the requests share a pool of blocks that takes a bounded part of the free memory.
"""

import os
from pathlib import Path

from scheduler.batch import BLOCK_SIZE
from scheduler.core import SchedulerLimits
from server.settings import Settings

FREE_MEMORY_SHARE = 4
"""One part in so many of the free memory is the most that the KV cache takes unasked: adapters and activations need
room too.
"""


class CapacityError(ValueError):
    """The settings ask for more than there is."""


def plan_limits(settings: Settings, n_ctx_train: int, block_bytes: int, free_bytes: int) -> SchedulerLimits:
    """Return the scheduler's limits for a model with a trained context of `n_ctx_train` tokens. Raises
    CapacityError.
    """
    context = n_ctx_train
    if settings.ctx_size:
        share = settings.ctx_size if settings.kv_unified else settings.ctx_size // settings.parallel
        context = min(share, n_ctx_train)
        if context < 2:
            raise CapacityError(
                f"--ctx-size {settings.ctx_size} leaves each of {settings.parallel} slots no room, raise it"
            )
    num_blocks = settings.parallel * _blocks(context)
    if settings.ctx_size and settings.kv_unified:
        num_blocks = min(num_blocks, _blocks(settings.ctx_size))
    if settings.kv_cache_bytes:
        num_blocks = min(num_blocks, settings.kv_cache_bytes // block_bytes)
    elif not settings.ctx_size:
        num_blocks = min(num_blocks, free_bytes // FREE_MEMORY_SHARE // block_bytes)
    elif num_blocks * block_bytes > free_bytes:
        raise CapacityError(
            f"--ctx-size {settings.ctx_size} needs {num_blocks * block_bytes:,} bytes of KV cache, "
            f"{free_bytes:,} are free"
        )
    if num_blocks < 1:
        raise CapacityError(f"one KV block takes {block_bytes:,} bytes; raise --kv-cache-bytes, or free some memory")
    return SchedulerLimits(
        num_slots=settings.parallel,
        num_blocks=num_blocks,
        max_context=min(context, num_blocks * BLOCK_SIZE),
        max_step_tokens=max(min(settings.batch_size, settings.ubatch_size or settings.batch_size), settings.parallel),
        max_waiting=settings.max_waiting,
    )


def _blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def free_memory_bytes() -> int:
    """Return how much main memory this process can still take: what the machine has free, within its control group's
    bound.
    """
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    free = 1024 * int(fields["MemAvailable"].split()[0])
    group = Path("/sys/fs/cgroup")
    try:
        bound = int((group / "memory.max").read_text(encoding="ascii"))
        used = int((group / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no version 2 control group, or "max": no bound
        return free
    return min(free, max(bound - used, 0))


def num_physical_cores() -> int:
    """Return the number of physical cores that this process may run on: two threads of one core share its arithmetic
    units.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return len(cores)


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return str(cpu)
