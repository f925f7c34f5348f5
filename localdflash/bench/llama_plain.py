"""Plain decoding by llama.cpp as fast as it can: what drafting has to beat, whatever runs the pair.

`LlamaCppTarget` adds a filler row to a lone row, and does without flash attention, so that a verify has the same bits.
Here a row is alone and attention is llama.cpp's default: as `llama-server` decodes, and faster.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Pair
from localdflash.errors import ModelError, OutOfMemory
from localdflash.llamacpp.target import LlamaCppTarget, context_params
from localdflash.loading.load import LoadedPair


class LoneRowTarget(LlamaCppTarget):
    """See `Target`."""

    def _params(self, threads: int) -> Any:
        params, default = context_params(self.model, self.context, threads), api.llama_context_default_params()
        params.flash_attn_type = default.flash_attn_type
        params.type_k, params.type_v = default.type_k, default.type_v
        return params

    def _filled(self, ids: Sequence[int]) -> Sequence[int]:
        return ids


@contextmanager
def llama_plain(loaded: LoadedPair) -> Iterator[Pair | None]:
    """llama.cpp on the same target, context and threads; None if it cannot run that."""
    try:
        target = LoneRowTarget(loaded.files.target, loaded.context, loaded.options.threads)
    except (ModelError, OutOfMemory):
        yield None
        return
    with closing(target):
        yield HostPair(target)
