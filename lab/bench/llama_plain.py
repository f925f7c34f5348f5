"""Plain decoding by llama.cpp as fast as it can: what drafting has to beat, whatever runs the pair.

`LlamaCppTarget` runs in a way in which a verify has the same bits, and that may cost something. Here a row is alone and
all flags are llama.cpp's own: as `llama-server` decodes.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp.decode_flags import UNMODIFIED
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.llamacpp.placement import PROCESSOR, Placement
from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Pair
from localdflash.loading.load_pair import LoadedPair


class LoneRowTarget(LlamaCppTarget):
    """See `Target`."""

    def __init__(self, path: Path, context: int, threads: int, placement: Placement = PROCESSOR) -> None:
        super().__init__(path, context, threads, mode=UNMODIFIED, placement=placement, drafts=False)

    def _params(self, threads: int, drafts: bool) -> Any:
        params = super()._params(threads, drafts)
        params.flash_attn_type = api.llama_context_default_params().flash_attn_type
        return params


@contextmanager
def llama_plain(loaded: LoadedPair) -> Iterator[Pair | None]:
    """llama.cpp on the same target, context, threads and GPU; None if it cannot run that."""
    ours = loaded.host.target if loaded.host else None
    placement = ours.placement if isinstance(ours, LlamaCppTarget) else PROCESSOR
    try:
        target = LoneRowTarget(loaded.files.target, loaded.context, loaded.options.threads, placement)
    except (ModelError, OutOfMemory):
        yield None
        return
    with closing(target):
        yield HostPair(target)
