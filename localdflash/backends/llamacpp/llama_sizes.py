"""Computes the memory of a pair in llama.cpp: weights from the headers, caches and buffers from llama.cpp's own plan.

The sizes of copied results and torch drafters are computed here. Files may be headers only, without weights.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.cpu.model_source import list_drafter_shapes
from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.decode_flags import DEFAULT, MAX_WIDTH, MAX_WIDTH_WITH_STATES, PLANNED_ON_GPU
from localdflash.backends.llamacpp.llama_drafter import check_drafter
from localdflash.backends.llamacpp.llama_drafter import context_params as drafter_params
from localdflash.backends.llamacpp.llama_kv_cache import has_states
from localdflash.backends.llamacpp.llama_target import context_params as target_params
from localdflash.backends.llamacpp.placement import PROCESSOR, Device, Placement
from localdflash.base.errors import ModelError
from localdflash.engine.checkpoints import MAX_CHECKPOINTS as CHECKPOINTS
from localdflash.models.memory.fit import NO_DRAFTER, UNCHANGED
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, IN_MEMORY, SCRATCH, TARGET, TARGET_KV, Parts
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.drafter_check import count_prediction_bytes
from localdflash.models.shapes.gguf_config import count_layers
from localdflash.models.weights.gguf import GGUFHeader, TensorInfo, read_header

_CACHE = re.compile(r": size = +([\d.]+) MiB \(")
_STATES = re.compile(r": size = +([\d.]+) MiB \(.* (\d+) rs_seq\)")  # the size of rs_seq + 1 states
_BUFFER = re.compile(r": +(\S+) +(output|compute|model|KV|RS) buffer size = +([\d.]+) MiB")
_BLOCK = re.compile(r"blk\.(\d+)\.")
FLOAT_BYTES = 4
TABLE = "token_embd.weight"
WEIGHTS, CACHES, WORK = ("model",), ("KV", "RS"), ("output", "compute")  # kinds of buffers


@dataclass(frozen=True)
class ReportedSizes:
    """Sizes in bytes that llama.cpp reported for one context; `buffers` of a plan lack weights and caches."""

    cache: int
    scratch: int
    checkpoints: int = 0
    buffers: Mapping[tuple[str, str], int] = field(default_factory=dict, compare=False)

    def sum_kinds(self, kinds: Collection[str], device: Device) -> tuple[int, int]:
        """Return the bytes of these kinds of buffers on a device, and in main memory."""
        sizes = [(name == device.name, size) for (name, kind), size in self.buffers.items() if kind in kinds]
        return sum(size for on, size in sizes if on), sum(size for on, size in sizes if not on)


def parse_size_lines(lines: Iterable[str]) -> ReportedSizes:
    """Parse the library's log lines about one context; raise ModelError if they do not report its cache."""
    caches, buffers, state = [], {}, 0.0
    for line in lines:
        if cache := _CACHE.search(line):
            caches.append(float(cache[1]))
            if states := _STATES.search(line):
                state = float(states[1]) / (int(states[2]) + 1)
        elif buffer := _BUFFER.search(line):
            buffers[buffer[1], buffer[2]] = _bytes(float(buffer[3]))  # the last plan of a buffer counts
    if not caches:
        raise ModelError("llama-cpp-python: this build does not report the size of its cache; reinstall it")
    scratch = sum(size for (_, kind), size in buffers.items() if kind in WORK)
    return ReportedSizes(_bytes(sum(caches)), scratch, CHECKPOINTS * _bytes(state), buffers)


def _bytes(mebibytes: float) -> int:
    return round(mebibytes * (1 << 20))


def split_weight_bytes(header: GGUFHeader, placement: Placement) -> tuple[int, int]:
    """Return the bytes of a model's weights on the device, and in main memory; both may hold a tied embedding."""
    head = "output.weight" if "output.weight" in header.tensors or TABLE not in header.tensors else TABLE
    first_block = count_layers(header) + 1 - placement.layers  # on the device: llama.cpp counts the output as a layer
    on_device = sum(info.nbytes for name, info in header.tensors.items() if _is_on_device(name, first_block, placement))
    in_memory = sum(info.nbytes for info in header.tensors.values()) - on_device
    if placement.layers and head == TABLE:
        on_device += header.tensors[TABLE].nbytes
    return on_device, in_memory


def tensors_read_in_memory(header: GGUFHeader, placement: Placement) -> dict[str, TensorInfo]:
    """Return the tensors in main memory of a model with layers on the device, without the embedding table."""
    first = count_layers(header) + 1 - placement.layers
    in_memory = (name for name in header.tensors if name != TABLE and not _is_on_device(name, first, placement))
    return {name: header.tensors[name] for name in in_memory}


def _is_on_device(name: str, first_block: int, placement: Placement) -> bool:
    if not placement.layers or name == TABLE:
        return False
    if not (match := _BLOCK.match(name)):
        return True
    block = int(match[1])
    return block >= first_block and not ("_exps" in name and block in placement.experts)


def cache_share(header: GGUFHeader, placement: Placement) -> float:
    """Return the share of the KV cache on the device, by the KV heads of the layers there."""
    blocks = count_layers(header)
    heads = header.metadata.get(f"{header.architecture}.attention.head_count_kv")
    weights = [float(count) for count in heads] if isinstance(heads, list) and len(heads) == blocks else [1.0] * blocks
    return sum(weights[max(blocks + 1 - placement.layers, 0) :]) / max(sum(weights), 1.0) if placement.layers else 0.0


class LlamaCppSizes(ExitStack):
    """See `MemorySizes`. A context manager that holds the files' vocabularies but no weights."""

    def __init__(self, target: Path, drafter: Path | None, placement: Placement = PROCESSOR, kv: str = "auto") -> None:
        super().__init__()
        self._header, self._placement, self._kv = read_header(target), placement, kv
        with ExitStack() as undo:
            undo.callback(self.close)
            self._target = self._load_without_weights(target, placement)
            self.trained: int = api.llama_model_n_ctx_train(self._target)
            self._vocab: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._target))
            self._hidden: int = api.llama_model_n_embd(self._target)
            self._config = config_of_file(drafter) if drafter else None
            if drafter and self._config:
                check_fit(self._config, self._hidden, self._vocab, count_layers(self._header), str(drafter))
                check_drafter(self._config, drafter)
            is_gguf = drafter and drafter.suffix == ".gguf"
            self._drafter = self._load_without_weights(drafter, placement.all_layers()) if drafter and is_gguf else None
            self._drafter_header = read_header(drafter) if drafter and is_gguf else None
            self.drafters = (UNCHANGED, NO_DRAFTER) if drafter else (NO_DRAFTER,)
            undo.pop_all()

    def _load_without_weights(self, path: Path, placement: Placement) -> Any:
        model = llama_library.load_model(path, simulate=True, placement=placement)
        self.callback(api.llama_model_free, model)
        return model

    def parts(self, context: int, drafter: str) -> Parts:
        """See `MemorySizes`."""
        with ExitStack() as stack:
            mode = PLANNED_ON_GPU if self._placement.layers else DEFAULT
            if has_states(self._target):  # the widest batch sets n_rs_seq, the number of kept states
                mode = replace(mode, widths=tuple(range(2, MAX_WIDTH_WITH_STATES + 1)))
            handle, reported = self._plan(self._target, target_params(context, mode=mode.with_kv(self._kv)), stack)
            logits = MAX_WIDTH * self._vocab * FLOAT_BYTES
            names, model = (TARGET, TARGET_KV), (self._header, self._placement)
            weights = api.llama_model_size(self._target) - count_prediction_bytes(self._header)
            parts = _parts(names, model, weights, reported, logits)
            if drafter == NO_DRAFTER or self._config is None:
                return parts
            return _add_parts(parts, self._drafter_parts(self._config, context, handle, stack))

    def _drafter_parts(self, config: DFlashConfig, context: int, target: Any, stack: ExitStack) -> Parts:
        """Return the drafter's parts; `target` is a planned context of the target."""
        if self._drafter is None or self._drafter_header is None:
            tied = "output.weight" not in self._header.tensors
            parts = torch_drafter_parts(config, context, self._vocab, self._hidden, tied)
            parts[SCRATCH] += self._feature_bytes(len(config.taps))
            in_memory = IN_MEMORY if self._placement.layers else ""
            return {name + in_memory: size for name, size in parts.items()}
        names, model = (DRAFTER, DRAFTER_KV), (self._drafter_header, self._placement.all_layers())
        # the library's logits, and two copies while probabilities are computed
        outputs = 3 * config.block_size * self._vocab * FLOAT_BYTES + self._feature_bytes(len(config.taps))
        _, reported = self._plan(self._drafter, drafter_params(config, target, context), stack)
        return _parts(names, model, api.llama_model_size(self._drafter), reported, outputs)

    def _feature_bytes(self, count: int) -> int:
        """Return the bytes of the target's features, in the library and as a copy."""
        return 2 * MAX_WIDTH * count * self._hidden * FLOAT_BYTES

    def _plan(self, model: Any, params: Any, stack: ExitStack) -> tuple[Any, ReportedSizes]:
        """Make a context that allocates nothing; return it and the sizes that llama.cpp reports."""
        with llama_library.collect_size_lines() as lines:
            handle = llama_library.new_context(model, params)
        if not handle:
            reason = llama_library.last_message()
            raise ModelError(f"llama.cpp cannot plan a context of {params.n_ctx} tokens: {reason}")
        stack.callback(api.llama_free, handle)
        return handle, parse_size_lines(lines)


def _parts(
    names: tuple[str, str], model: tuple[GGUFHeader, Placement], weights: int, reported: ReportedSizes, outputs: int
) -> Parts:
    """Return a planned model's parts by `names` (of weights, of caches); `outputs`: bytes of copied logits and taps."""
    (weights_name, cache_name), (header, placement) = names, model
    if not placement.device or not placement.layers:
        cache = reported.cache + reported.checkpoints
        return {weights_name: weights, cache_name: cache, SCRATCH: reported.scratch + outputs}
    on_device, in_memory = split_weight_bytes(header, placement)
    cache = round(reported.cache * cache_share(header, placement))
    work, host_work = reported.sum_kinds(WORK, placement.device)
    parts = {weights_name: on_device, cache_name: cache, SCRATCH: work}
    host_cache = reported.cache - cache + reported.checkpoints
    host_parts = {weights_name: in_memory, cache_name: host_cache, SCRATCH: host_work + outputs}
    return parts | {name + IN_MEMORY: size for name, size in host_parts.items() if size}


def measured_parts(names: tuple[str, str], weights: int, lines: Iterable[str], placement: Placement) -> Parts:
    """Return the parts of a loaded model, from the log lines of its loading."""
    reported, (weights_name, cache_name) = parse_size_lines(lines), names
    if not placement.device or not placement.layers:
        return {weights_name: weights, cache_name: reported.cache, SCRATCH: reported.scratch}
    sides = [reported.sum_kinds(kinds, placement.device) for kinds in (WEIGHTS, CACHES, WORK)]
    part_names = (weights_name, cache_name, SCRATCH)
    on_device = {name: size for name, (size, _) in zip(part_names, sides, strict=True)}
    return on_device | {name + IN_MEMORY: size for name, (_, size) in zip(part_names, sides, strict=True) if size}


def _add_parts(parts: Parts, more: Parts) -> Parts:
    return {name: parts.get(name, 0) + more.get(name, 0) for name in (*parts, *more)}


def torch_drafter_parts(config: DFlashConfig, context: int, vocab: int, hidden: int, tied: bool) -> Parts:
    """Return the sizes of a drafter in torch: float32, with the target's embedding and head as tensors."""
    c = config.decoder
    weights = sum(map(prod, list_drafter_shapes(config).values()))
    tables = (vocab * (1 if tied else 2) + len(config.short)) * hidden
    cache = c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim * context * FLOAT_BYTES
    logits = config.block_size * vocab * FLOAT_BYTES
    scratch = cache + 2 * logits  # the cache grows by copying
    return {DRAFTER: (weights + tables) * FLOAT_BYTES, DRAFTER_KV: cache, SCRATCH: scratch}
