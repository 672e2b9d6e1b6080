"""Run a piece of a kernel on every thread of torch's own OpenMP team.

numba's own pools would stand beside torch's: with a thread for every core in each, one pool's threads spin where the
other's should run, and a busy machine stalls for whole time slices at every change. The team that has just computed a
matrix product is awake and takes up work in microseconds. `GOMP_parallel` is what GCC makes of `#pragma omp parallel`,
so it is in every Linux build of torch; where the process has none, the calling thread does all the work alone.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from model.cpu.jit import inlined

Counter: TypeAlias = NDArray[np.int64]
"""One integer in memory: how much of a kernel's work has been taken. Begins at 0."""

_I8_POINTER = ir.IntType(8).as_pointer()
_TEAM_FUNCTION = ir.FunctionType(ir.VoidType(), [_I8_POINTER])
_GOMP_PARALLEL = ir.FunctionType(
    ir.VoidType(), [_TEAM_FUNCTION.as_pointer(), _I8_POINTER, ir.IntType(32), ir.IntType(32)]
)


def _run_in_team(typing: Any, worker: Any, arguments: Any, num_threads: Any) -> Any:
    worker_signature = worker.get_call_type(typing, arguments.types, {})

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        _, packed, threads = values
        member = _team_member(context, builder, worker, worker_signature, packed.type)
        memory = builder.bitcast(cgutils.alloca_once_value(builder, packed), _I8_POINTER)
        if binding.address_of_symbol("GOMP_parallel") is None:
            builder.call(member, [memory])
        else:
            alone = builder.icmp_signed("<=", threads, ir.Constant(threads.type, 1))
            with builder.if_else(alone) as (then, otherwise):
                with then:
                    builder.call(member, [memory])
                with otherwise:
                    launch = cgutils.get_or_insert_function(builder.module, _GOMP_PARALLEL, "GOMP_parallel")
                    builder.call(launch, [member, memory, threads, ir.Constant(ir.IntType(32), 0)])
        return context.get_dummy_value()

    return types.void(worker, arguments, types.int32), generate


def _team_member(context: Any, builder: Any, worker: Any, signature: Any, packed_type: Any) -> ir.Function:
    """An LLVM function that takes the address of the packed arguments and calls the worker with them."""
    compiled = worker.dispatcher.get_compile_result(signature)
    context.active_code_library.add_linking_library(compiled.library)
    callee = context.declare_function(builder.module, compiled.fndesc)
    member = ir.Function(builder.module, _TEAM_FUNCTION, builder.module.get_unique_name("team_member"))
    member.linkage = "internal"
    body = ir.IRBuilder(member.append_basic_block())
    values = cgutils.unpack_tuple(body, body.load(body.bitcast(member.args[0], packed_type.as_pointer())))
    context.call_conv.call_function(body, callee, signature.return_type, signature.args, values)
    body.ret_void()
    return member


def _load_shared(typing: Any, counter: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = context.make_array(counter)(context, builder, arguments[0]).data
        return builder.load_atomic(start, "acquire", 8)

    return types.int64(counter), generate


def _pause(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.FunctionType(ir.VoidType(), [])
        builder.call(cgutils.get_or_insert_function(builder.module, nothing, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


def _yield_thread(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield")
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate


def _fetch_add(typing: Any, counter: Any, amount: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start = context.make_array(counter)(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", start, arguments[1], "acq_rel")

    return types.int64(counter, types.int64), generate


run_in_team: Callable[..., None] = intrinsic(_run_in_team)
"""(worker, arguments, num_threads): call the compiled function worker(*arguments) on so many threads, and wait for all.

The worker returns nothing and does not raise; what is to do it takes from a counter that all of them share.
"""

fetch_add: Callable[..., int] = intrinsic(_fetch_add)
"""(counter, amount) -> the first element of an int64 array before `amount` was added to it, atomically."""

_load_shared_counter: Callable[..., int] = intrinsic(_load_shared)
_pause_thread: Callable[..., None] = intrinsic(_pause)
_yield_processor: Callable[..., None] = intrinsic(_yield_thread)

_SPINS = 4000
"""So often a thread looks again before it lets another one have the processor: some 50 us."""


@inlined
def wait_until(counter: Counter, value: int) -> None:
    """Return when the counter has reached `value`: what other threads did before they added to it is then seen."""
    spins = 0
    while _load_shared_counter(counter) < value:
        _pause_thread()
        spins += 1
        if spins >= _SPINS:
            _yield_processor()
