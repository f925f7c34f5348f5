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
from localdflash.backends.llamacpp.certified import choose
from localdflash.backends.llamacpp.certified import measure as really_measure  # every test has another one
from localdflash.backends.llamacpp.decode_flags import NOT_REPACKED, ONE_PATH, Way
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import ModelError, UsageError
from localdflash.engine.draft import NOTHING, Draft
from tests.support.random_models import Shape, quantize, write

TAPS = (1, 3, 4)


@pytest.fixture
def target(tiny_pair: Path) -> Iterator[LlamaCppTarget]:
    target = LlamaCppTarget(tiny_pair / "target.gguf", threads=1, taps=TAPS)
    yield target
    target.close()


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 400, count)]


def fill(target: LlamaCppTarget, ids: list[int], chunk: int) -> None:
    target.crop(0)
    for start in range(0, len(ids), chunk):
        target.extend(ids[start : start + chunk])


def chain(tokens: list[int]) -> Draft:
    return Draft("test", tokens, [1.0] * len(tokens))


def rows_one_by_one(target: LlamaCppTarget, tokens: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    rows = []
    for token in tokens:
        seen = target.verify(token, NOTHING)
        assert seen.taps is not None
        rows.append((seen.logits[0].copy(), seen.taps[0].copy()))
        target.keep(1)
    return rows


@pytest.mark.parametrize("length", [1, 37, 250, 600])
def test_rows_are_bit_equal_for_every_width(target: LlamaCppTarget, length: int) -> None:
    prompt, tokens = ids_of(length), ids_of(32, seed=1)
    fill(target, prompt, 32)
    expected = rows_one_by_one(target, tokens)
    target.crop(length)
    for width in range(1, 33):
        seen = target.verify(tokens[0], chain(tokens[1:width]))
        assert seen.taps is not None
        for row in range(width):
            assert np.array_equal(seen.logits[row], expected[row][0]), (width, row)
            assert np.array_equal(seen.taps[row], expected[row][1]), (width, row)
        target.keep(0)


@pytest.mark.parametrize("chunk", [1, 5, 31, 32])
def test_how_a_prompt_is_cut_does_not_change_a_bit(target: LlamaCppTarget, chunk: int) -> None:
    prompt = ids_of(97)
    fill(target, prompt, 32)
    expected = target.verify(3, NOTHING).logits[0].copy()
    fill(target, prompt, chunk)
    assert np.array_equal(target.verify(3, NOTHING).logits[0], expected)


def test_kept_rows_stay_and_others_go(target: LlamaCppTarget) -> None:
    prompt, tokens = ids_of(40), ids_of(8, seed=2)
    fill(target, prompt, 32)
    target.verify(tokens[0], chain(tokens[1:]))
    target.keep(3)
    assert target.length == 43
    after = target.verify(9, NOTHING).logits[0].copy()
    fill(target, prompt + tokens[:3], 32)
    assert np.array_equal(target.verify(9, NOTHING).logits[0], after)


def test_a_saved_state_goes_on_bit_equal(target: LlamaCppTarget) -> None:
    prompt = ids_of(70)
    fill(target, prompt, 32)
    expected = target.verify(5, NOTHING).logits[0].copy()
    target.keep(0)
    state = target.save()
    fill(target, ids_of(90, seed=3), 32)
    target.load(state, 70)
    assert target.length == 70
    assert np.array_equal(target.verify(5, NOTHING).logits[0], expected)


def test_taps_and_logits_agree_with_the_float32_decoder(target: LlamaCppTarget, tiny_pair: Path) -> None:
    ids = ids_of(60)
    fill(target, ids[:-1], 32)
    seen = target.verify(ids[-1], NOTHING)
    model = load_decoder(tiny_pair / "target.gguf")
    with torch.inference_mode():
        hidden, taps = model(torch.tensor([ids]), torch.arange(60), causal, TAPS)
        logits = model.logits(hidden[0, -1]).numpy()
    expected = torch.cat(taps, -1)[0, -1].numpy()
    assert seen.taps is not None
    # llama.cpp rounds activations to 8 bits before every product: that is the tolerance.
    assert np.linalg.norm(seen.taps[0] - expected) < 0.03 * np.linalg.norm(expected)
    assert np.linalg.norm(seen.logits[0] - logits) < 0.03 * np.linalg.norm(logits)


def test_the_context_can_be_filled_to_its_last_token(tiny_pair: Path) -> None:
    target = LlamaCppTarget(tiny_pair / "target.gguf", context=64, threads=1)
    fill(target, ids_of(63), 32)
    target.verify(1, NOTHING)
    target.keep(1)
    assert target.length == 64
    target.close()


@pytest.mark.parametrize("context", [7, 1025, -1])
def test_a_context_that_the_model_was_not_trained_for_is_refused(tiny_pair: Path, context: int) -> None:
    with pytest.raises(UsageError, match="1024"):
        LlamaCppTarget(tiny_pair / "target.gguf", context=context)


@pytest.mark.parametrize("tap", [-1, 5, 99])
def test_taps_outside_of_the_target_are_refused(target: LlamaCppTarget, tap: int) -> None:
    with pytest.raises(ModelError, match=f"tap {tap}"):
        target.set_taps([tap])


def test_taps_can_be_turned_off(target: LlamaCppTarget) -> None:
    target.set_taps(())
    assert target.verify(1, NOTHING).taps is None


def test_a_file_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "noise.gguf"
    path.write_bytes(b"GGUF" + bytes(400))
    with pytest.raises(ModelError) as caught:
        LlamaCppTarget(path)
    assert "\n" not in str(caught.value)


class Interrupts(list[str]):
    """A listener that presses Ctrl+C at the first line, while the library is loading."""

    def append(self, _line: str) -> None:
        if not self:
            self += ["pressed"]
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_the_library_loads_is_not_lost(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a callback, where Python would print and forget it; pytest would fail on what is printed."""
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
    way = Way(NOT_REPACKED, (4, 8, 16), borders=True)
    target = LlamaCppTarget(tiny_pair / "target.gguf", 512, 1, way=way)
    fill(target, ids_of(241), 16)
    assert (target.length, target.max_rows) == (241, 8)
    target.verify(1, NOTHING)
    target.keep(1)
    target.verify(1, chain([2, 3, 4, 5]))
    target.keep(5)
    assert (target.length, target.max_rows, counts[-2:]) == (247, 6, [4, 8])
    target.close()


def test_taps_of_an_architecture_without_them_are_refused_before_llama_cpp_aborts(
    target: LlamaCppTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_library, "metadata", lambda *_: "qwen2")
    with pytest.raises(ModelError, match="no hidden states of qwen2") as caught:
        target.set_taps(TAPS)
    assert "\n" not in str(caught.value)
    target.set_taps(())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "experts"), [("Q4_K_M", 0), ("Q6_K", 0), ("Q4_K_M", 4)])
def test_what_is_certified_holds_for_k_quants_and_mixtures(tmp_path: Path, kind: str, experts: int) -> None:
    """Whatever this machine certifies: rows of drafts of every width are those of plain decoding in the same way."""
    shape = Shape("F16", 256, 2, 4, 2, 256, 1024, experts=experts, used=min(experts, 2), scale=0.15)
    path = quantize(write(tmp_path / "model.gguf", shape), tmp_path / f"{kind}.gguf", kind)
    record = really_measure(lambda repack: llama_library.load_model(path, repack=repack), (ONE_PATH, NOT_REPACKED), 1)
    chosen = choose(record, "exact", with_drafter=True)
    assert chosen.kind == ("exact" if record.ways else "not certified")
    if not record.ways:
        pytest.skip(f"no rows of {kind} agree on this machine")
    target = LlamaCppTarget(path, 512, 1, way=chosen.way)
    prompt, tokens = ids_of(41), ids_of(chosen.way.widths[-1], seed=5)
    fill(target, prompt, 16)
    expected = []
    for token in tokens:
        expected.append(target.verify(token, NOTHING).logits[0].copy())
        target.keep(1)
    target.crop(len(prompt))
    for width in range(1, len(tokens) + 1):
        seen = target.verify(tokens[0], chain(tokens[1:width]))
        assert np.array_equal(seen.logits, expected[:width]), width
        target.keep(0)
    target.close()
