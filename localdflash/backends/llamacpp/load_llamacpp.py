"""Load a pair on llama.cpp: plan its memory, then load the target and its drafter."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp import certified, llama_library, llama_sizes, placing
from localdflash.backends.llamacpp.certified import ModeChoice
from localdflash.backends.llamacpp.llama_drafter import LlamaCppDFlashDrafter
from localdflash.backends.llamacpp.llama_kv_cache import STATE_FORMAT
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget, check_taps
from localdflash.backends.llamacpp.placement import Placement
from localdflash.backends.llamacpp.placing import PlacementPlan
from localdflash.base import extras
from localdflash.base.errors import ModelError
from localdflash.base.machine import gpu_watch
from localdflash.base.machine.cores import clamp, core_count
from localdflash.base.machine.gpu_watch import Watch
from localdflash.engine.pair import Drafter
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import NO_DRAFTER
from localdflash.models.memory.parts import (
    DRAFTER,
    DRAFTER_KV,
    IN_MEMORY,
    PROGRAM,
    TARGET,
    TARGET_KV,
    Parts,
    split_host_parts,
)
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running, compose
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.drafter_check import check_drafter, count_prediction_bytes
from localdflash.models.shapes.fingerprint import mismatch
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.split import files_of

Measure = Callable[[], Parts]


def select_drafter(target: Path, drafter: Path | None) -> tuple[Path | None, str]:
    """Return the drafter, or None and a reason if the target exports no features; ModelError for a wrong drafter."""
    if not drafter:
        return None, ""
    check_drafter(target, drafter)
    try:
        check_taps(read_header(target).architecture)
    except ModelError as error:
        return None, f"{drafter}: {error}"
    return drafter, ""


def open_drafter(
    path: Path, target_file: Path, target: LlamaCppTarget, threads: int, stack: ExitStack
) -> tuple[Drafter, Measure, str]:
    """Open a drafter that passed `select_drafter`, to be freed by `stack`, and set the target's taps for it.

    Return the drafter, a function that measures its memory, and a notice for the user or "".
    """
    if path.suffix != ".gguf":
        return _open_in_torch(path, target_file, target)
    with llama_library.collect_size_lines() as lines:
        drafter = LlamaCppDFlashDrafter(path, target, threads)
        stack.callback(drafter.close)
        target.set_taps(drafter.config.taps)
    notice = mismatch(path, drafter.config.trained_for, read_header(target_file))
    weights, placement = api.llama_model_size(drafter.model), target.placement.all_layers()
    return drafter, lambda: llama_sizes.measured_parts((DRAFTER, DRAFTER_KV), weights, lines, placement), notice


def _open_in_torch(path: Path, target_file: Path, target: LlamaCppTarget) -> tuple[Drafter, Measure, str]:
    extras.require("torch", f"{path}: a safetensors drafter with llama.cpp")
    from localdflash.backends.reference.dflash_files import load as load_dflash
    from localdflash.backends.reference.reference_drafter import DFlashDrafter
    from localdflash.models.weights.gguf import load_tensor

    model, header = load_dflash(path), read_header(target_file)
    check_fit(model.config, target.hidden_size, target.vocab_size, target.layers, str(path))
    target.set_taps(model.config.taps)
    embedding = load_tensor(header, "token_embd.weight")
    head = load_tensor(header, "output.weight") if "output.weight" in header.tensors else embedding
    drafter, host_suffix = DFlashDrafter(model, embedding, head), IN_MEMORY if target.placement.layers else ""

    def measure() -> Parts:
        return {DRAFTER + host_suffix: drafter.weight_bytes, DRAFTER_KV + host_suffix: drafter.cache_bytes}

    return drafter, measure, mismatch(path, model.config.trained_for, header)


def load(files: LocalPair, options: Options) -> Running:
    """Load a pair; raise NoDevice, OutOfMemory, ModelError or UsageError."""
    drafter = files.drafter_gguf or files.drafter_safetensors
    plan = placing.plan_placement(files.target, drafter if options.draft else None, options)
    with ExitStack() as stack:
        watch = gpu_watch.watch(stack) if plan.placement.device else gpu_watch.UNWATCHED
        with watch:
            return _load(files, drafter, plan, options, watch, stack)


def _load(
    files: LocalPair, drafter: Path | None, plan: PlacementPlan, options: Options, watch: Watch, stack: ExitStack
) -> Running:
    fit, placement = plan.fit, plan.placement
    threads, thread_notice = clamp(options.threads)
    options = replace(options, threads=threads)
    path, refusal = select_drafter(files.target, drafter if options.draft else None)
    choice = choose_mode_for(files.target, options, placement, drafter is not None)
    if not choice.may_draft:
        path, refusal = None, ""
    if fit and fit.drafter == NO_DRAFTER:
        path = None
    uses_torch = path is not None and path.suffix != ".gguf"
    predicted = {**fit.parts, PROGRAM: free.program_bytes(uses_torch)} if fit else {}
    with llama_library.collect_size_lines() as lines:
        context = fit.context if fit else options.context
        may_draft = choice.may_draft and options.draft
        target = LlamaCppTarget(files.target, context, threads, (), choice.mode, placement, watch, may_draft)
    stack.callback(target.close)
    if any("REPACK" in line for line in lines):
        for file in files_of(files.target):
            llama_library.release_pages(file)
    notices = [thread_notice, plan.notice, fit.notice if fit else "", refusal]
    # Users expect drafts, and the same text as without drafts.
    lacks_drafts = not choice.may_draft and options.draft and drafter
    if lacks_drafts or (choice.may_draft and choice.kind != "exact" and options.rows != "fast"):
        notices.append(choice.message)
    drafters = [open_drafter(path, files.target, target, threads, stack)] if path else []
    notices += [notice for _, _, notice in drafters]
    unloaded = count_prediction_bytes(read_header(files.target))
    measures = [_measure_target(target, lines, unloaded), *(measure for _, measure, _ in drafters)]
    pair = compose(target, [drafter for drafter, _, _ in drafters], replace(options, draft=may_draft))
    names, build = [drafter.name for drafter in pair.drafters], version("llama-cpp-python")
    return Running(
        pair=pair,
        host_pair=pair,
        context=target.context,
        device=placement.device.name if placement.device else "cpu",
        vocab_size=target.vocab_size,
        identity=(target.context, names, build, STATE_FORMAT, str(choice.mode), *placement.identity),
        width_status=choice.message,
        predicted_memory=predicted,
        measured=lambda: _measure_all(measures) if fit else free.with_program({}),
        notices=notices,
        close=stack.pop_all().close,
    )


def choose_mode_for(target: Path, options: Options, placement: Placement, with_drafter: bool) -> ModeChoice:
    """Choose the decode mode in which a target runs; measure the file first if needed."""
    choice = _choose_mode(target, options, placement, with_drafter)
    return replace(choice, mode=choice.mode.with_kv(options.kv))


def _choose_mode(target: Path, options: Options, placement: Placement, with_drafter: bool) -> ModeChoice:
    if options.rows == "fast":
        return certified.choose_mode(certified.skip_measuring(target), "fast", with_drafter)
    threads, device = options.threads or core_count(), "cpu"
    if placement.layers:
        device = repr(placement.identity)

    def open_model(repack: bool) -> Any:
        return llama_library.load_model(target, repack=repack, placement=placement)

    measurement = certified.load_or_measure(target, device, threads, open_model, options.kv)
    return certified.choose_mode(measurement, options.rows, with_drafter)


def _measure_target(target: LlamaCppTarget, lines: list[str], unloaded: int) -> Measure:
    """Return a function that measures the target; `unloaded` are bytes of its file that were not loaded."""

    def measure() -> Parts:
        weights = api.llama_model_size(target.model) - unloaded
        parts = llama_sizes.measured_parts((TARGET, TARGET_KV), weights, lines, target.placement)
        kv_part = TARGET_KV + IN_MEMORY if target.placement.layers else TARGET_KV
        return {**parts, kv_part: parts.get(kv_part, 0) + target.checkpoint_bytes} if target.checkpoint_bytes else parts

    return measure


def _measure_all(measures: list[Measure]) -> Parts:  # sums of all parts, and this process's memory as PROGRAM
    parts: Parts = {}
    for measure in measures:
        for name, size in measure().items():
            parts[name] = parts.get(name, 0) + size
    _, host_parts = split_host_parts(parts)
    on_gpu = {name: size for name, size in parts.items() if name not in host_parts} if host_parts else {}
    return {**on_gpu, **free.with_program(host_parts or parts)}
