"""A pair on llama.cpp: memory planned before it is taken, the target loaded, its drafter in llama.cpp or torch."""

from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import llama_cpp.llama_cpp as api

from localdflash.backend import free
from localdflash.backend.fit import NO_DRAFTER, Fit, fit
from localdflash.backend.options import Options
from localdflash.backend.parts import DRAFTER, DRAFTER_KV, PROGRAM, SCRATCH, TARGET, TARGET_KV, Parts
from localdflash.backend.running import Running, compose
from localdflash.engine.pair import Drafter
from localdflash.errors import ModelError
from localdflash.llamacpp import library, sizes
from localdflash.llamacpp.drafter import LlamaCppDFlashDrafter
from localdflash.llamacpp.target import LlamaCppTarget
from localdflash.model.dflash_config import DFlashConfig, check_fit
from localdflash.model.fingerprint import mismatch
from localdflash.pairs.pair import LocalPair
from localdflash.weights.gguf import read_header

Measure = Callable[[], Parts]


def load(files: LocalPair, options: Options) -> Running:
    """The pair as `options` say. OutOfMemory says what would fit, ModelError and UsageError what is wrong."""
    path = (files.drafter_gguf or files.drafter_safetensors) if options.draft else None
    planned = _planned(files.target, path, options.context)
    predicted = _predicted(planned, path)
    with ExitStack() as stack:
        with library.said_sizes() as lines:
            target = LlamaCppTarget(files.target, planned.context if planned else options.context, options.threads)
        stack.callback(target.close)
        if any("REPACK" in line for line in lines):
            library.release_pages(files.target)
        drafters: list[Drafter] = []
        measures, notices = [_of_target(target, lines)], [planned.notice] if planned else []
        if path and (planned is None or planned.drafter != NO_DRAFTER):
            drafter, config, measure = _loaded(path, files.target, target, options.threads, stack)
            drafters.append(drafter)
            if config.trained_for:
                notices.append(mismatch(path, config.trained_for, read_header(files.target)))
            measures.append(measure)
        pair = compose(target, drafters, options)
        return Running(
            pair=pair,
            host=pair,
            context=target.context,
            device="cpu",
            vocab_size=target.vocab_size,
            identity=(target.context, [drafter.name for drafter in pair.drafters], version("llama-cpp-python")),
            predicted=predicted,
            measured=lambda: _together(measures) if planned else free.with_program({}),
            notices=notices,
            close=stack.pop_all().close,
        )


def _planned(target: Path, drafter: Path | None, context: int) -> Fit | None:
    """What fits; None if loading itself has to say what is wrong, or llama.cpp does not report its sizes."""
    try:
        with sizes.LlamaCppSizes(target, drafter) as needed:
            return None if context > needed.trained else fit(needed, free.system_budget(), context)
    except ModelError:
        return None


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
        said = sizes.sizes_said(lines)
        return {DRAFTER: api.llama_model_size(drafter.model), DRAFTER_KV: said.cache, SCRATCH: said.scratch}

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
    drafter = DFlashDrafter(model, embedding, head)
    return drafter, model.config, lambda: {DRAFTER: drafter.weight_bytes, DRAFTER_KV: drafter.context.nbytes}


def _of_target(target: LlamaCppTarget, lines: list[str]) -> Measure:
    def measure() -> Parts:
        said = sizes.sizes_said(lines)
        return {TARGET: api.llama_model_size(target.model), TARGET_KV: said.cache, SCRATCH: said.scratch}

    return measure


def _together(measures: list[Measure]) -> Parts:
    parts: Parts = {}
    for measure in measures:
        for name, size in measure().items():
            parts[name] = parts.get(name, 0) + size
    return free.with_program(parts)
