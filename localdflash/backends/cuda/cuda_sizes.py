"""The memory of a pair on the CUDA engine, part by part: adapts `backends/cuda/memory.py` to what a plan names."""

from pathlib import Path

from localdflash.backends.cuda.assembly import KV_TYPES, check_drafter
from localdflash.backends.cuda.memory import (
    LONGEST,
    check_kinds,
    drafter_bytes,
    file_bytes,
    gguf_drafter_bytes,
    kv_bytes,
    predict_bytes,
    short_head_bytes,
    tensor_bytes,
)
from localdflash.backends.cuda.stepper import SLACK
from localdflash.models.memory.fit import AS_IT_IS, NO_DRAFTER
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV, Parts
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.gguf import read_header

BITS = {"8 bits": 8, "4 bits": 4}


class CudaSizes:
    """See `Sizes`; `bits` is the most a safetensors drafter may have. ModelError if CUDA cannot run the pair."""

    def __init__(self, target: Path, drafter: Path | None, kv: str = "f16", bits: int = 8) -> None:
        self.header = read_header(target)
        check_kinds(self.header)
        self._config = decoder_config(self.header)
        self._kv = KV_TYPES[kv]
        self._target = file_bytes(self.header)
        self._path, self._drafter = drafter, config_of_file(drafter) if drafter else None
        if self._drafter:
            c = self._config
            check_drafter(self._drafter, str(drafter))
            check_fit(self._drafter, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(drafter))
        self.trained = min(self._config.context_length, LONGEST)
        self.drafters = self._drafters(bits)

    def _drafters(self, bits: int) -> tuple[str, ...]:
        if self._path is None:
            return (NO_DRAFTER,)
        if self._path.suffix == ".gguf":
            return AS_IT_IS, NO_DRAFTER
        return *(name for name, size in BITS.items() if size <= bits), NO_DRAFTER

    def parts(self, context: int, drafter: str) -> Parts:
        """See `Sizes`."""
        drafting = self._drafter if drafter != NO_DRAFTER else None
        weights = self._drafter_bytes(drafting, drafter) if drafting else 0
        memory = predict_bytes(self._target, self._config, drafting, weights, self._kv)
        parts = {TARGET: memory.target, TARGET_KV: kv_bytes(self._config, self._kv) * (context + SLACK)}
        if drafting:
            cache = kv_bytes(drafting.decoder, KV_TYPES["f16"]) * (context + SLACK)
            parts |= {DRAFTER: weights, DRAFTER_KV: cache}
        return parts | {SCRATCH: memory.total(context) - sum(parts.values())}

    def _drafter_bytes(self, config: DFlashConfig, drafter: str) -> int:
        assert self._path is not None
        gguf = self._path.suffix == ".gguf"
        size = gguf_drafter_bytes(read_header(self._path)) if gguf else drafter_bytes(config, BITS[drafter])
        if not config.short or config.own_head:
            return size
        rows, tied = len(config.short), self._config.tie_word_embeddings
        head = self.header.tensors["token_embd.weight" if tied else "output.weight"]
        return size + short_head_bytes(tensor_bytes(head.ggml_type, head.shape), self._config.vocab_size, rows)
