"""llama.cpp as a target: rows that do not depend on their neighbours, a cache that can be cropped, saved and loaded."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.decode_flags import DEFAULT, KV_TYPES
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import ModelError
from localdflash.engine.draft import EMPTY_DRAFT
from tests.support.lossless import assert_lossless, fill

TAPS = (1, 3, 4)


@pytest.fixture
def target(tiny_pair: Path) -> Iterator[LlamaCppTarget]:
    target = LlamaCppTarget(tiny_pair / "target.gguf", threads=1, taps=TAPS)
    yield target
    target.close()


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 400, count)]


def test_is_lossless(target: LlamaCppTarget) -> None:
    """Test a short and a long context, where a single row may be split over threads."""
    for length in (37, 600):
        assert_lossless(
            target, ids_of(length + 32), range(1, 33), chunks=(1, 5, 31), lengths=(1, 70 if length > 70 else 30)
        )


@pytest.mark.parametrize("kv", KV_TYPES)
def test_is_lossless_with_quantized_kv_cache(kv: str, tiny_pair: Path) -> None:
    mode = DEFAULT.with_kv(kv)
    with closing(LlamaCppTarget(tiny_pair / "target.gguf", threads=1, taps=TAPS, mode=mode)) as target:
        assert_lossless(target, ids_of(302), (1, 2, 3, 8, 9, 32), chunks=(1, 5, 31), lengths=(1, 270))


def test_taps_and_logits_agree_with_the_float32_decoder(target: LlamaCppTarget, tiny_pair: Path) -> None:
    ids = ids_of(60)
    fill(target, ids[:-1], 32)
    seen = target.verify(ids[-1], EMPTY_DRAFT)
    model = load_decoder(tiny_pair / "target.gguf")
    with torch.inference_mode():
        hidden, taps = model(torch.tensor([ids]), torch.arange(60), causal, TAPS)
        logits = model.logits(hidden[0, -1]).numpy()
    expected = torch.cat(taps, -1)[0, -1].numpy()
    assert seen.features is not None
    # llama.cpp rounds activations to 8 bits before every product: that is the tolerance.
    assert np.linalg.norm(seen.features[0] - expected) < 0.03 * np.linalg.norm(expected)
    assert np.linalg.norm(seen.logits[0] - logits) < 0.03 * np.linalg.norm(logits)


def test_taps_can_be_set_refused_and_turned_off(target: LlamaCppTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    for tap in (-1, 5):
        with pytest.raises(ModelError, match=f"tap {tap}"):
            target.set_taps([tap])
    with monkeypatch.context() as patch:  # llama.cpp would abort
        patch.setattr(llama_library, "metadata", lambda *_: "qwen2")
        with pytest.raises(ModelError, match="no hidden states of qwen2"):
            target.set_taps(TAPS)
    target.set_taps(())
    assert target.verify(1, EMPTY_DRAFT).features is None


class Interrupts(list[str]):
    """Log listener that interrupts at the first line, while the library is loading."""

    def append(self, _line: str) -> None:
        if not self:
            self += ["pressed"]
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_the_library_loads_is_not_lost(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(llama_library, "_SIZE_LISTENERS", [Interrupts()])
    with pytest.raises(KeyboardInterrupt):
        LlamaCppTarget(tiny_pair / "target.gguf")
    assert signal.getsignal(signal.SIGINT) is handler
