"""Open the drafter of a pair on llama.cpp, of any kind, and measure its memory."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp import llama_library, llama_sizes
from localdflash.backends.llamacpp.chained import ChainedDrafter, LlamaCppEagle3Drafter, LlamaCppMtpDrafter
from localdflash.backends.llamacpp.draft_model import LlamaCppDraftModel
from localdflash.backends.llamacpp.llama_drafter import LlamaCppDFlashDrafter
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget, check_last_tap, check_taps
from localdflash.base import extras
from localdflash.base.errors import ModelError
from localdflash.engine.pair import Drafter
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, IN_MEMORY, Parts
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.drafter_kind import block_count, blocks_ahead, check_drafter, head_bytes, kind_of
from localdflash.models.shapes.eagle3 import taps_of
from localdflash.models.shapes.fingerprint import mismatch
from localdflash.models.weights.gguf import read_header

Measure = Callable[[], Parts]


@dataclass(frozen=True)
class DrafterSetup:
    """Drafter, a function that measures its memory, and a notice for the user or ""."""

    drafter: Drafter
    measure: Measure
    notice: str = ""


def check_readable(target: Path, drafter: Path | None) -> tuple[Path | None, str]:
    """Return the drafter if llama.cpp can run it, otherwise None and the reason.

    Raise ModelError for the drafter of another model.
    """
    if not drafter:
        return None, ""
    check_drafter(target, drafter)
    kind, header = kind_of(target, drafter), read_header(target)
    try:
        if kind != "draft-model":
            check_taps(header.architecture)
        if kind in ("eagle3", "mtp"):
            llama_library.heads_reader()  # not every build exports it
        if kind == "eagle3":
            layers = block_count(header) - blocks_ahead(header)
            check_last_tap(header.architecture, layers, taps_of(read_header(drafter)))
    except ModelError as error:
        return None, f"{drafter}: {error}"
    return drafter, ""


def open_drafter(path: Path, target_file: Path, target: LlamaCppTarget, threads: int, stack: ExitStack) -> DrafterSetup:
    """Open a drafter that passed `check_readable`, to be freed by `stack`, and set the target's taps for it."""
    if path.suffix != ".gguf":
        return _open_in_torch(path, target_file, target)
    with llama_library.collect_size_lines() as lines:
        match kind_of(target_file, path):
            case "dflash":
                return _open_dflash(path, target_file, target, threads, lines, stack)
            case "eagle3":
                eagle3 = LlamaCppEagle3Drafter(path, target, threads)
                return _open_chained(eagle3, target, api.llama_model_size(eagle3.model), lines, stack)
            case "mtp":
                head = LlamaCppMtpDrafter(target, threads)
                return _open_chained(head, target, head_bytes(read_header(target_file)), lines, stack)
            case "draft-model":
                model = LlamaCppDraftModel(path, target, threads)
                stack.callback(model.close)
                return DrafterSetup(model, _measure(target, api.llama_model_size(model.model.model), lines))


def _open_dflash(
    path: Path, target_file: Path, target: LlamaCppTarget, threads: int, lines: list[str], stack: ExitStack
) -> DrafterSetup:
    drafter = LlamaCppDFlashDrafter(path, target, threads)
    stack.callback(drafter.close)
    target.set_taps(drafter.config.taps)
    notice = mismatch(path, drafter.config.trained_for, read_header(target_file)) if drafter.config.trained_for else ""
    return DrafterSetup(drafter, _measure(target, api.llama_model_size(drafter.model), lines), notice)


def _open_chained(
    drafter: ChainedDrafter, target: LlamaCppTarget, weights: int, lines: list[str], stack: ExitStack
) -> DrafterSetup:
    stack.callback(drafter.close)
    target.set_taps(drafter.taps)
    return DrafterSetup(drafter, _measure(target, weights, lines))


def _measure(target: LlamaCppTarget, weights: int, lines: list[str]) -> Measure:
    return lambda: llama_sizes.measured((DRAFTER, DRAFTER_KV), weights, lines, target.placement.all_layers())


def _open_in_torch(path: Path, target_file: Path, target: LlamaCppTarget) -> DrafterSetup:
    """Open a safetensors drafter in torch, with the GGUF target's embedding and head as tensors."""
    extras.require("torch", f"{path}: a safetensors drafter beside llama.cpp")
    from localdflash.backends.reference.dflash_files import load as load_dflash
    from localdflash.backends.reference.reference_drafter import DFlashDrafter
    from localdflash.models.weights.gguf import load_tensor

    model, header = load_dflash(path), read_header(target_file)
    check_fit(model.config, target.hidden_size, target.vocab_size, target.layers, str(path))
    target.set_taps(model.config.taps)
    embedding = load_tensor(header, "token_embd.weight")
    head = load_tensor(header, "output.weight") if "output.weight" in header.tensors else embedding
    drafter, beside = DFlashDrafter(model, embedding, head), IN_MEMORY if target.placement.layers else ""
    notice = mismatch(path, model.config.trained_for, header) if model.config.trained_for else ""

    def measure() -> Parts:
        return {DRAFTER + beside: drafter.weight_bytes, DRAFTER_KV + beside: drafter.context.nbytes}

    return DrafterSetup(drafter, measure, notice)
