"""llama.cpp as a target: rows that do not depend on their neighbours, a cache that can be cropped, saved and loaded."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
import torch

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.certified import choose_mode
from localdflash.backends.llamacpp.certified import measure as really_measure  # every test has another one
from localdflash.backends.llamacpp.decode_flags import NOT_REPACKED, ONE_PATH, DecodeMode
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import ModelError, UsageError
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from tests.support.lossless import assert_lossless, fill
from tests.support.random_models import Shape, quantize, write

TAPS = (1, 3, 4)


@pytest.fixture
def target(tiny_pair: Path) -> Iterator[LlamaCppTarget]:
    target = LlamaCppTarget(tiny_pair / "target.gguf", threads=1, taps=TAPS)
    yield target
    target.close()


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 400, count)]


def test_is_lossless(target: LlamaCppTarget) -> None:
    """At a short and at a long length, where a single row may be split among threads."""
    for length in (37, 600):
        assert_lossless(
            target, ids_of(length + 32), range(1, 33), chunks=(1, 5, 31), lengths=(1, 70 if length > 70 else 30)
        )


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


def test_the_context_can_be_filled_to_its_last_token_and_is_one_of_training(tiny_pair: Path) -> None:
    target = LlamaCppTarget(tiny_pair / "target.gguf", context=64, threads=1)
    fill(target, ids_of(63), 32)
    target.verify(1, EMPTY_DRAFT)
    target.keep(1)
    assert target.length == 64
    target.close()
    for context in (7, 1025, -1):
        with pytest.raises(UsageError, match="1024"):
            LlamaCppTarget(tiny_pair / "target.gguf", context=context)


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
    """A listener that presses Ctrl+C at the first line, while the library is loading."""

    def append(self, _line: str) -> None:
        if not self:
            self += ["pressed"]
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_the_library_loads_is_not_lost(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(llama_library, "_SIZES", [Interrupts()])
    with pytest.raises(KeyboardInterrupt):
        LlamaCppTarget(tiny_pair / "target.gguf")
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_way_decides_how_many_rows_a_decode_has(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    original = api.llama_decode

    def counting(handle: object, batch: Any) -> int:
        counts.append(batch.n_tokens)
        return int(original(handle, batch))

    monkeypatch.setattr(api, "llama_decode", counting)
    way = DecodeMode(NOT_REPACKED, (4, 8, 16), borders=True)
    target = LlamaCppTarget(tiny_pair / "target.gguf", 512, 1, mode=way)
    fill(target, ids_of(241), 16)
    assert (target.length, target.max_width) == (241, 8)
    target.verify(1, EMPTY_DRAFT)
    target.keep(1)
    target.verify(1, Draft("test", [2, 3, 4, 5], [1.0] * 4))
    target.keep(5)
    assert (target.length, target.max_width, counts[-2:]) == (247, 6, [4, 8])
    target.close()


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "experts"), [("Q4_K_M", 0), ("Q6_K", 0), ("Q4_K_M", 4)])
def test_what_is_certified_holds_for_k_quants_and_mixtures(tmp_path: Path, kind: str, experts: int) -> None:
    shape = Shape("F16", 256, 2, 4, 2, 256, 1024, experts=experts, used=min(experts, 2), scale=0.15)
    path = quantize(write(tmp_path / "model.gguf", shape), tmp_path / f"{kind}.gguf", kind)
    record = really_measure(lambda repack: llama_library.load_model(path, repack=repack), (ONE_PATH, NOT_REPACKED), 1)
    chosen = choose_mode(record, "exact", with_drafter=True)
    assert chosen.kind == ("exact" if record.modes else "not certified")
    if not record.modes:
        pytest.skip(f"no rows of {kind} agree on this machine")
    target = LlamaCppTarget(path, 512, 1, mode=chosen.mode)
    most = chosen.mode.widths[-1]
    assert_lossless(target, ids_of(41 + most), range(1, most + 1), lengths=(41,))
    target.close()
