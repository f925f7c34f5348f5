"""llama.cpp's own plain decoding: a row without company, and the same answer but for rounding."""

from pathlib import Path

import llama_cpp.llama_cpp as api
import pytest

from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.lab.bench.lone_row_target import LoneRowTarget


def test_a_lone_row_is_decoded_alone(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    original = api.llama_decode

    def counting(handle: object, batch: api.llama_batch) -> int:
        rows.append(batch.n_tokens)
        return int(original(handle, batch))

    monkeypatch.setattr(api, "llama_decode", counting)
    logits = []
    for kind in (LlamaCppTarget, LoneRowTarget):
        target = kind(tiny_pair / "target.gguf", 64, 1)
        target.extend([5, 6, 7])
        logits.append(target.verify(8, EMPTY_DRAFT).logits[0].copy())
        target.keep(1)
        assert target.length == 4
        target.close()
    assert rows == [3, 2, 3, 1]
    assert float((logits[0] - logits[1]).std()) < 0.1 * float(logits[0].std())
