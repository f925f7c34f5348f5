"""Load a pair on llama.cpp: plan its memory, then load the target and its drafter."""

from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp import certified, llama_library, llama_sizes, placing
from localdflash.backends.llamacpp.certified import ModeChoice
from localdflash.backends.llamacpp.llama_kv_cache import STATE_FORMAT
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.llamacpp.open_drafter import DrafterSetup, Measure, check_readable, open_drafter
from localdflash.backends.llamacpp.placement import Placement
from localdflash.backends.llamacpp.placing import PlacementPlan
from localdflash.base.machine import gpu_watch
from localdflash.base.machine.cores import physical_cores
from localdflash.base.machine.gpu_watch import Watch
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import NO_DRAFTER, Fit
from localdflash.models.memory.parts import IN_MEMORY, PROGRAM, TARGET, TARGET_KV, Parts, divided
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running, compose
from localdflash.models.shapes.drafter_kind import drafter_of, head_bytes, kind_of
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.split import files_of


def load(files: LocalPair, options: Options) -> Running:
    """Load a pair.

    Raise NoDevice if the GPU is missing, OutOfMemory if the pair does not fit, ModelError or UsageError.
    """
    drafter = drafter_of(files.target, files.drafter_gguf or files.drafter_safetensors)
    placed = placing.plan_placement(files.target, drafter if options.draft else None, options)
    with ExitStack() as stack:
        flag = gpu_watch.watch(stack) if placed.placement.device else gpu_watch.UNWATCHED
        with flag:
            return _load(files, drafter, placed, options, flag, stack)


def _load(
    files: LocalPair, drafter: Path | None, placed: PlacementPlan, options: Options, flag: Watch, stack: ExitStack
) -> Running:
    planned, placement = placed.fit, placed.placement
    path, refused = check_readable(files.target, drafter if options.draft else None)
    chosen = choose_mode_for(files.target, options, placement, drafter is not None)
    if not chosen.drafts:
        path, refused = None, ""
    if planned and planned.drafter == NO_DRAFTER:
        path = None
    predicted = _predicted(planned, path)
    with llama_library.collect_size_lines() as lines:
        context = planned.context if planned else options.context
        drafts = chosen.drafts and options.draft
        mtp = path is not None and kind_of(files.target, path) == "mtp"
        target = LlamaCppTarget(files.target, context, options.threads, (), chosen.mode, placement, flag, drafts, mtp)
    stack.callback(target.close)
    if any("REPACK" in line for line in lines):
        for file in files_of(files.target):
            llama_library.release_pages(file)
    opened: list[DrafterSetup] = []
    notices = [placed.notice, planned.notice if planned else "", refused]
    if _is_news(chosen, options, drafter is not None):
        notices.append(chosen.message)
    if path:
        opened.append(open_drafter(path, files.target, target, options.threads, stack))
    notices += [one.notice for one in opened]
    ahead = head_bytes(read_header(files.target))
    measures = [_measure_target(target, lines, ahead), *(one.measure for one in opened)]
    pair = compose(target, [one.drafter for one in opened], replace(options, draft=drafts))
    names, build = [drafter.name for drafter in pair.drafters], version("llama-cpp-python")
    return Running(
        pair=pair,
        host=pair,
        context=target.context,
        device=placement.device.name if placement.device else "cpu",
        vocab_size=target.vocab_size,
        identity=(target.context, names, build, STATE_FORMAT, str(chosen.mode), *placement.identity),
        rows=chosen.message,
        predicted=predicted,
        measured=lambda: _sum_parts(measures) if planned else free.with_program({}),
        notices=notices,
        close=stack.pop_all().close,
    )


def choose_mode_for(target: Path, options: Options, placement: Placement, with_drafter: bool) -> ModeChoice:
    """Choose the decode mode of a target, which it keeps; measure the file first if needed."""
    if options.rows == "fast":
        return certified.choose_mode(certified.skip_measuring(target), "fast", with_drafter)
    threads, device = options.threads or len(physical_cores()), "cpu"
    if placement.layers:
        device = repr(placement.identity)

    def open_model(repack: bool) -> Any:
        return llama_library.load_model(target, repack=repack, placement=placement)

    return certified.choose_mode(
        certified.load_or_measure(target, device, threads, open_model), options.rows, with_drafter
    )


def _is_news(chosen: ModeChoice, options: Options, with_drafter: bool) -> bool:
    """Return whether the mode differs from what a user expects: identical text, and drafts."""
    if chosen.drafts:
        return chosen.kind != "exact" and options.rows != "fast"
    return options.draft and with_drafter


def _predicted(planned: Fit | None, drafter: Path | None) -> Parts:
    if planned is None:
        return {}
    torch_drafts = drafter is not None and drafter.suffix != ".gguf"
    return {**planned.parts, PROGRAM: free.program_bytes(torch_drafts)}


def _measure_target(target: LlamaCppTarget, lines: list[str], ahead: int) -> Measure:
    """Return a function that measures the target; `ahead` is the size of the draft head in its file."""

    def measure() -> Parts:
        weights = api.llama_model_size(target.model) - ahead
        parts = llama_sizes.measured((TARGET, TARGET_KV), weights, lines, target.placement)
        held = TARGET_KV + IN_MEMORY if target.placement.layers else TARGET_KV
        return {**parts, held: parts.get(held, 0) + target.checkpoint_bytes} if target.checkpoint_bytes else parts

    return measure


def _sum_parts(measures: list[Measure]) -> Parts:
    parts: Parts = {}
    for measure in measures:
        for name, size in measure().items():
            parts[name] = parts.get(name, 0) + size
    _, beside = divided(parts)
    on_gpu = {name: size for name, size in parts.items() if name not in beside} if beside else {}
    return {**on_gpu, **free.with_program(beside or parts)}
