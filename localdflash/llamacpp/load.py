"""A pair on llama.cpp: memory planned before it is taken, the target loaded, its drafter in llama.cpp or torch."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backend import free
from localdflash.backend.fit import NO_DRAFTER, Fit
from localdflash.backend.options import Options
from localdflash.backend.parts import DRAFTER, DRAFTER_KV, IN_MEMORY, PROGRAM, TARGET, TARGET_KV, Parts, divided
from localdflash.backend.running import Running, compose
from localdflash.engine.pair import Drafter
from localdflash.errors import ModelError
from localdflash.llamacpp import certified, library, placing, sizes
from localdflash.llamacpp.cache import FORM
from localdflash.llamacpp.certified import Choice
from localdflash.llamacpp.drafter import LlamaCppDFlashDrafter
from localdflash.llamacpp.placement import PROCESSOR, Placement
from localdflash.llamacpp.placing import Placed
from localdflash.llamacpp.target import LlamaCppTarget, check_taps
from localdflash.machine import gpu_watch
from localdflash.machine.cores import physical_cores
from localdflash.machine.gpu_watch import Watch
from localdflash.model.dflash_config import DFlashConfig, check_fit
from localdflash.model.dflash_file import config_of_file
from localdflash.model.fingerprint import mismatch
from localdflash.pairs.pair import LocalPair
from localdflash.weights.gguf import read_header
from localdflash.weights.split import files_of

Measure = Callable[[], Parts]


def load(files: LocalPair, options: Options) -> Running:
    """The pair as `options` say. NoDevice if there is no such GPU, OutOfMemory says what would fit; ModelError and
    UsageError what is wrong.
    """
    drafter = (files.drafter_gguf or files.drafter_safetensors) if options.draft else None
    placed = placing.plan(files.target, drafter, options)
    with ExitStack() as stack:
        flag = gpu_watch.watch(stack) if placed.placement.device else gpu_watch.UNWATCHED
        with flag:
            return _load(files, drafter, placed, options, flag, stack)


def _load(
    files: LocalPair, path: Path | None, placed: Placed, options: Options, flag: Watch, stack: ExitStack
) -> Running:
    planned, placement = placed.fit, placed.placement
    path, refused = _readable(files.target, path)
    chosen = chosen_way(files, options, placement)
    if not chosen.drafts:
        path, refused = None, ""
    predicted = _predicted(planned, path)
    with library.said_sizes() as lines:
        context = planned.context if planned else options.context
        drafts = chosen.drafts and options.draft
        target = LlamaCppTarget(files.target, context, options.threads, (), chosen.way, placement, flag, drafts)
    stack.callback(target.close)
    if any("REPACK" in line for line in lines):
        for file in files_of(files.target):
            library.release_pages(file)
    drafters: list[Drafter] = []
    measures = [_of_target(target, lines)]
    notices = [placed.notice, planned.notice if planned else "", refused]
    if _is_news(chosen, options, files):
        notices.append(chosen.said)
    if path and (planned is None or planned.drafter != NO_DRAFTER):
        drafter, config, measure = _loaded(path, files.target, target, options.threads, stack)
        drafters.append(drafter)
        if config.trained_for:
            notices.append(mismatch(path, config.trained_for, read_header(files.target)))
        measures.append(measure)
    pair = compose(target, drafters, replace(options, draft=drafts))
    names, build = [drafter.name for drafter in pair.drafters], version("llama-cpp-python")
    return Running(
        pair=pair,
        host=pair,
        context=target.context,
        device=placement.device.name if placement.device else "cpu",
        vocab_size=target.vocab_size,
        identity=(target.context, names, build, FORM, str(chosen.way), *placement.identity),
        rows=chosen.said,
        predicted=predicted,
        measured=lambda: _together(measures) if planned else free.with_program({}),
        notices=notices,
        close=stack.pop_all().close,
    )


def chosen_way(files: LocalPair, options: Options, placement: Placement = PROCESSOR) -> Choice:
    """The way of this pair, which it keeps to; measured, if that was not done yet and is needed."""
    with_drafter = bool(files.drafter_gguf or files.drafter_safetensors)
    if options.rows == "fast":
        return certified.choose(certified.unmeasured(files.target), "fast", with_drafter)
    threads, device = options.threads or len(physical_cores()), "cpu"
    if placement.layers:
        device = repr(placement.identity)

    def opened(repack: bool) -> Any:
        return library.load_model(files.target, repack=repack, placement=placement)

    return certified.choose(certified.recorded(files.target, device, threads, opened), options.rows, with_drafter)


def _is_news(chosen: Choice, options: Options, files: LocalPair) -> bool:
    """Whether a user would expect something else: identity, or a drafter at work."""
    if chosen.drafts:
        return chosen.kind != "exact" and options.rows != "fast"
    return options.draft and bool(files.drafter_gguf or files.drafter_safetensors)


def _readable(target: Path, drafter: Path | None) -> tuple[Path | None, str]:
    """The drafter if llama.cpp gives what it reads, else why not; ModelError for one of another model."""
    if not drafter:
        return None, ""
    header = read_header(target)
    try:
        check_taps(header.architecture)
    except ModelError as error:
        return None, f"{drafter}: {error}"
    hidden = header.require(f"{header.architecture}.embedding_length", int)
    vocabulary = len(header.require("tokenizer.ggml.tokens", list))
    check_fit(config_of_file(drafter), hidden, vocabulary, sizes.block_count(header), str(drafter))
    return drafter, ""


def _predicted(planned: Fit | None, drafter: Path | None) -> Parts:
    if planned is None:
        return {}
    torch_drafts = drafter is not None and drafter.suffix != ".gguf" and planned.drafter != NO_DRAFTER
    return {**planned.parts, PROGRAM: free.program_bytes(torch_drafts)}


def _loaded(
    path: Path, target_file: Path, target: LlamaCppTarget, threads: int, stack: ExitStack
) -> tuple[Drafter, DFlashConfig, Measure]:
    """The drafter in either of its forms, its configuration, and what it takes; the target's taps are set for it."""
    if path.suffix != ".gguf":
        return _in_torch(path, target_file, target)
    with library.said_sizes() as lines:
        drafter = LlamaCppDFlashDrafter(path, target, threads)
    stack.callback(drafter.close)
    target.set_taps(drafter.config.taps)

    def measure() -> Parts:
        names, weights = (DRAFTER, DRAFTER_KV), api.llama_model_size(drafter.model)
        return sizes.measured(names, weights, lines, target.placement.whole())

    return drafter, drafter.config, measure


def _in_torch(path: Path, target_file: Path, target: LlamaCppTarget) -> tuple[Drafter, DFlashConfig, Measure]:
    """A safetensors drafter for a GGUF target, whose embedding and head it needs as tensors."""
    from localdflash.reference.dflash_files import load as load_dflash
    from localdflash.reference.drafter import DFlashDrafter
    from localdflash.weights.gguf import load_tensor

    model, header = load_dflash(path), read_header(target_file)
    check_fit(model.config, target.hidden_size, target.vocab_size, target.layers, str(path))
    target.set_taps(model.config.taps)
    embedding = load_tensor(header, "token_embd.weight")
    head = load_tensor(header, "output.weight") if "output.weight" in header.tensors else embedding
    drafter, beside = DFlashDrafter(model, embedding, head), IN_MEMORY if target.placement.layers else ""
    return (
        drafter,
        model.config,
        lambda: {DRAFTER + beside: drafter.weight_bytes, DRAFTER_KV + beside: drafter.context.nbytes},
    )


def _of_target(target: LlamaCppTarget, lines: list[str]) -> Measure:
    def measure() -> Parts:
        parts = sizes.measured((TARGET, TARGET_KV), api.llama_model_size(target.model), lines, target.placement)
        held = TARGET_KV + IN_MEMORY if target.placement.layers else TARGET_KV
        return {**parts, held: parts.get(held, 0) + target.copied_bytes} if target.copied_bytes else parts

    return measure


def _together(measures: list[Measure]) -> Parts:
    parts: Parts = {}
    for measure in measures:
        for name, size in measure().items():
            parts[name] = parts.get(name, 0) + size
    _, beside = divided(parts)
    on_gpu = {name: size for name, size in parts.items() if name not in beside} if beside else {}
    return {**on_gpu, **free.with_program(beside or parts)}
