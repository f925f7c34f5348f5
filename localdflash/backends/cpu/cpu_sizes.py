"""Computes the memory of a pair on the CPU engine from the files' headers; mapped weights count as memory."""

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import bind_drafter_shape, bind_shape, why_unsupported
from localdflash.backends.cpu.cpu_drafter import FLOAT_BYTES, logit_bytes, waiting_bytes, why_drafter_unsupported
from localdflash.backends.cpu.cpu_kv_cache import cache_bytes, pad_positions
from localdflash.backends.cpu.cpu_target import state_bytes
from localdflash.backends.cpu.model_source import (
    USE_LLAMA_CPP,
    check_drafter_file,
    check_target_file,
    is_float_part,
    list_drafter_shapes,
)
from localdflash.backends.cpu.packing import GROUP, Kind, MatrixShape
from localdflash.base.errors import ModelError
from localdflash.base.machine.cores import clamp
from localdflash.models.memory.fit import NO_DRAFTER, UNCHANGED
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, Parts
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.weights.gguf import read_header


class CpuSizes:
    """See `MemorySizes`. ModelError if the CPU engine cannot run the pair, NoDevice if the engine was not built.

    Only headers (of a safetensors drafter, only its config.json) are read, so the files may lack their weights.
    """

    def __init__(
        self, target: Path, drafter: Path | None, threads: int = 0, drafter_bits: int = 8, kv: str = "f16"
    ) -> None:
        self._library, self._threads, self._kv = cpu_library.load(), clamp(threads)[0], kv
        self.header = read_header(target)
        source = check_target_file(target, self.header)
        self._config = source.config
        if problem := why_unsupported(self._config):
            raise ModelError(f"{target}: the CPU engine does not run {problem}; {USE_LLAMA_CPP}")
        self._target_bytes = sum(part.packed_bytes for part in source.parts)
        self._drafter_config = config_of_file(drafter) if drafter else None
        self._drafter_bytes = 0
        if drafter and (config := self._drafter_config):
            c, rows = self._config, len(config.short)
            check_fit(config, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(drafter))
            if problem := why_drafter_unsupported(config):
                raise ModelError(f"{drafter}: the CPU engine does not run drafters with {problem}; {USE_LLAMA_CPP}")
            head = next(part for part in reversed(source.parts) if part.name in ("head", "embedding")).matrix
            self._drafter_bytes = _drafter_bytes(drafter, config, drafter_bits) + rows * np.dtype(np.int32).itemsize
            if head and rows and not config.own_head:
                self._drafter_bytes += replace(head, n=rows).nbytes
        self.trained = self._config.context_length
        self.drafters = (UNCHANGED, NO_DRAFTER) if drafter else (NO_DRAFTER,)

    def parts(self, context: int, drafter: str) -> Parts:
        """See `MemorySizes`."""
        c, config = self._config, self._drafter_config if drafter != NO_DRAFTER else None
        taps = len(config.taps) if config else 0
        logits = cpu_library.MAX_ROWS * (c.vocab_size + taps * c.hidden_size) * FLOAT_BYTES
        model = bind_shape(c)
        model.tap_count, model.capacity = taps, context
        scratch = _rope_bytes(c, context) + logits + self._library.workspace_bytes(model, self._threads)
        parts = {TARGET: self._target_bytes, TARGET_KV: _kv_bytes(c, context, self._kv)}
        if config:
            d, tokens = config.decoder, context + config.block_size
            parts |= {DRAFTER: self._drafter_bytes, DRAFTER_KV: _kv_bytes(d, tokens)}
            scratch += _rope_bytes(d, tokens) + waiting_bytes(config, c.hidden_size, context) + logit_bytes(config)
            drafter_model = bind_drafter_shape(config)
            drafter_model.capacity = tokens
            scratch += self._library.workspace_bytes(drafter_model, self._threads)
        return parts | {SCRATCH: scratch}


def _drafter_bytes(path: Path, config: DFlashConfig, bits: int) -> int:
    if path.suffix == ".gguf":
        return sum(part.packed_bytes for part in check_drafter_file(path, bits).parts)
    kind, shapes = Kind.Q4_0 if bits == 4 else Kind.Q8_0, list_drafter_shapes(config)
    floats = [shape for name, shape in shapes.items() if is_float_part(name)]
    matrices = [shape for name, shape in shapes.items() if not is_float_part(name)]
    if any(k % GROUP for _, k in matrices):
        raise ModelError(f"{path}: the width of a matrix is not a multiple of {GROUP}; {USE_LLAMA_CPP}")
    return sum(MatrixShape(kind, n, k).nbytes for n, k in matrices) + sum(map(prod, floats)) * FLOAT_BYTES


def _kv_bytes(config: DecoderConfig, context: int, kv: str = "f16") -> int:
    c = config
    states = state_bytes(c.delta, c.recurrent_layers) if c.delta else 0
    return states + (c.num_hidden_layers - c.recurrent_layers) * cache_bytes(c, context, kv)


def _rope_bytes(config: DecoderConfig, context: int) -> int:
    return 2 * pad_positions(context) * ((config.rotary_dim or config.head_dim) // 2) * FLOAT_BYTES
