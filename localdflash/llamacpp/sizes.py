"""The memory of a pair in llama.cpp on this CPU: weights by the files' headers, the rest by llama.cpp itself.

llama.cpp can plan its buffers without allocating them (`no_alloc`), so caches and compute buffers of every architecture
are its own numbers. A file may be a stand-in that has only the header (plan/stand_in.py): no weights are read.
"""

import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp.llama_cpp as api

from localdflash.backend.fit import AS_IT_IS, NO_DRAFTER
from localdflash.backend.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, Parts
from localdflash.errors import ModelError
from localdflash.llamacpp import library
from localdflash.llamacpp.drafter import context_params as drafter_params
from localdflash.llamacpp.target import EXACT_ROWS
from localdflash.llamacpp.target import context_params as target_params
from localdflash.model.dflash_config import DFlashConfig, config_of_file
from localdflash.weights.gguf import read_header

_CACHE = re.compile(r": size = +([\d.]+) MiB \(")
_BUFFER = re.compile(r": +(\S+) +(output|compute) buffer size = +([\d.]+) MiB")
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Said:
    """What llama.cpp reported of one context: bytes of its caches, and of its compute and output buffers."""

    cache: int
    scratch: int


def sizes_said(lines: Iterable[str]) -> Said:
    """Read the library's lines about one context; ModelError if it does not report its cache."""
    caches, buffers = [], {}
    for line in lines:
        if found := _CACHE.search(line):
            caches.append(float(found[1]))
        elif found := _BUFFER.search(line):
            buffers[found[1], found[2]] = float(found[3])  # a buffer that was planned again counts once
    if not caches:
        raise ModelError("this build of llama-cpp-python does not say how large its cache is: reinstall it")
    return Said(_bytes(sum(caches)), _bytes(sum(buffers.values())))


def _bytes(mebibytes: float) -> int:
    return round(mebibytes * (1 << 20))


class LlamaCppSizes:
    """See `Sizes`. A context manager: it holds the files' vocabularies, but no weights."""

    def __init__(self, target: Path, drafter: Path | None) -> None:
        self._closing, self._path = ExitStack(), target
        with ExitStack() as undo:
            undo.callback(self._closing.close)
            self._target = self._model(target)
            self.trained: int = api.llama_model_n_ctx_train(self._target)
            self._vocab: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._target))
            self._hidden: int = api.llama_model_n_embd(self._target)
            self._config = config_of_file(drafter) if drafter else None
            self._drafter = self._model(drafter) if drafter and drafter.suffix == ".gguf" else None
            self.drafters = (AS_IT_IS, NO_DRAFTER) if drafter else (NO_DRAFTER,)
            undo.pop_all()

    def _model(self, path: Path) -> Any:
        model = library.load_model(path, simulate=True)
        self._closing.callback(api.llama_model_free, model)
        return model

    def parts(self, context: int, drafter: str) -> Parts:
        """See `Sizes`."""
        with ExitStack() as freeing:
            handle, said = self._plan(self._target, target_params(self._target, context), freeing)
            logits = EXACT_ROWS * self._vocab * FLOAT
            parts = {TARGET: api.llama_model_size(self._target), TARGET_KV: said.cache, SCRATCH: said.scratch + logits}
            if drafter == NO_DRAFTER or self._config is None:
                return parts
            taps = EXACT_ROWS * len(self._config.taps) * self._hidden * FLOAT
            if self._drafter is None:
                added = torch_drafter(self._config, context, self._vocab, self._hidden, self._tied())
            else:
                params = drafter_params(self._config, handle, context)
                _, said = self._plan(self._drafter, params, freeing)
                logits = self._config.block_size * self._vocab * FLOAT
                added = {DRAFTER: api.llama_model_size(self._drafter), DRAFTER_KV: said.cache, SCRATCH: said.scratch}
                added[SCRATCH] += 3 * logits  # the library's, and two copies while probabilities are taken
        added[SCRATCH] += parts[SCRATCH] + 2 * taps
        return parts | added

    def _plan(self, model: Any, params: Any, freeing: ExitStack) -> tuple[Any, Said]:
        """Make a context that allocates nothing, and return what llama.cpp reports of it."""
        with library.said_sizes() as lines:
            handle = library.new_context(model, params)
        if not handle:
            raise ModelError(f"llama.cpp cannot plan a context of {params.n_ctx} tokens: {library.last_message()}")
        freeing.callback(api.llama_free, handle)
        return handle, sizes_said(lines)

    def _tied(self) -> bool:
        """Whether the embedding table is the head, too."""
        return "output.weight" not in read_header(self._path).tensors

    def close(self) -> None:
        """Free the vocabularies."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def torch_drafter(config: DFlashConfig, context: int, vocab: int, hidden: int, tied: bool) -> Parts:
    """A drafter that torch runs beside llama.cpp, all in float32, with the target's embedding and head as tensors."""
    c = config.decoder
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    layer = c.hidden_size * (2 * queries + 2 * keys + 3 * c.intermediate_size)
    weights = c.num_hidden_layers * layer + len(config.taps) * c.hidden_size**2
    tables = (vocab * (1 if tied else 2) + len(config.short)) * hidden
    cache = c.num_hidden_layers * 2 * keys * context * FLOAT
    logits = config.block_size * vocab * FLOAT
    return {DRAFTER: (weights + tables) * FLOAT, DRAFTER_KV: cache, SCRATCH: cache + 2 * logits}  # grown by copying
