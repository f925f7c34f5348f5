"""llama.cpp with its own flags, one token at a time, as `llama-server` decodes: the fastest baseline."""

from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp.decode_flags import UNMODIFIED
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.llamacpp.placement import PROCESSOR, Placement


class SingleTokenTarget(LlamaCppTarget):
    """Target on llama.cpp with llama.cpp's default flags, for single-token batches only."""

    def __init__(self, path: Path, context: int, threads: int, placement: Placement = PROCESSOR) -> None:
        super().__init__(path, context, threads, mode=UNMODIFIED, placement=placement, may_draft=False)

    def _params(self, threads: int, may_draft: bool) -> Any:
        params = super()._params(threads, may_draft)
        params.flash_attn_type = api.llama_context_default_params().flash_attn_type
        return params
