"""Loads a pair on the CPU engine: plans its memory, packs or maps the weights, starts the threads."""

from contextlib import ExitStack

from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_drafter import CpuDFlashDrafter
from localdflash.backends.cpu.cpu_kv_cache import choose_kv_format
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.base.machine.cores import clamp, physical_cores
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import NO_DRAFTER, check_context, fit
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, PROGRAM, SCRATCH, TARGET, TARGET_KV, Parts
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running, compose
from localdflash.models.shapes.fingerprint import mismatch


def load(files: LocalPair, options: Options) -> Running:
    """Load a pair; raise NoDevice if the CPU engine cannot be used, else OutOfMemory, ModelError or UsageError."""
    path = (files.drafter_gguf or files.drafter_safetensors) if options.draft else None
    kv = choose_kv_format(options.kv, files.kv)
    sizes = CpuSizes(files.target, path, options.threads, options.drafter_bits, kv)
    check_context(options.context, sizes.trained, files.target.name)
    threads, thread_notice = clamp(options.threads)
    plan = fit(sizes, free.system_budget(), options.context, can_evict=options.can_evict)
    predicted = {**plan.parts, PROGRAM: free.program_bytes(False)}
    weights = open_target(files.target, options.progress)
    drafter_weights = open_drafter(path, bits=options.drafter_bits) if path and plan.drafter != NO_DRAFTER else None
    notices = [thread_notice, plan.notice, weights.notice]
    if path and drafter_weights:
        notices += [drafter_weights.notice, mismatch(path, drafter_weights.config.trained_for, sizes.header)]
    with ExitStack() as stack:
        pool = ThreadPool(threads, physical_cores())
        stack.callback(pool.close)
        target = CpuTarget(weights, pool, plan.context, drafter_weights.config.taps if drafter_weights else (), kv)
        drafter = CpuDFlashDrafter(drafter_weights, target) if drafter_weights else None
        pair = compose(target, [drafter] if drafter else [], options)
        return Running(
            pair=pair,
            host_pair=pair,
            context=target.context,
            device="cpu",
            vocab_size=target.vocab_size,
            identity=(target.context, [drafter.name for drafter in pair.drafters], options.drafter_bits, kv),
            predicted_memory=predicted,
            measured=lambda: _measure_parts(target, drafter),
            notices=notices,
            close=stack.pop_all().close,
        )


def _measure_parts(target: CpuTarget, drafter: CpuDFlashDrafter | None) -> Parts:
    kv_bytes = target.cache.nbytes + (target.states.nbytes if target.states else 0)
    parts = {TARGET: target.packed.nbytes, TARGET_KV: kv_bytes, SCRATCH: target.scratch_bytes}
    if drafter:
        parts |= {DRAFTER: drafter.weight_bytes, DRAFTER_KV: drafter.cache.nbytes}
        parts[SCRATCH] += drafter.scratch_bytes
    return free.with_program(parts)
