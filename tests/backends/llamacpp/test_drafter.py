"""The DFlash drafter in llama.cpp: its saved states, a short vocabulary, and files that it refuses."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.llama_drafter import LlamaCppDFlashDrafter
from localdflash.backends.llamacpp.llama_sizes import torch_drafter_parts
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import ModelError
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV
from localdflash.models.weights.gguf import read_header
from tests.support.random_drafters import config_of, random_weights, vocabulary_of, write_gguf, write_zlab
from tests.support.shortened import shortened


@pytest.fixture(scope="module")
def target(tiny_pair: Path) -> Iterator[LlamaCppTarget]:
    with closing(LlamaCppTarget(tiny_pair / "target.gguf", threads=1, taps=(1, 3, 4))) as opened:
        yield opened


def test_rollback_waiting_features_and_saved_states(target: LlamaCppTarget, tiny_pair: Path) -> None:
    drafter = LlamaCppDFlashDrafter(tiny_pair / "drafter.gguf", target, threads=1)
    taps = np.random.default_rng(0).normal(size=(30, 192)).astype(np.float32)
    drafter.observe([7] * 12, taps[:12])
    shorter = drafter.propose(3, 7)
    drafter.rollback(10)
    drafter.observe([7] * 20, taps[10:])
    expected, state = drafter.propose(3, 7), drafter.save()
    drafter.rollback(0)
    drafter.observe([7] * 8, taps[:8])
    drafter.observe([7] * 22, taps[8:])
    drafter.rollback(12)  # of unread features
    assert drafter.length == 12
    assert drafter.propose(3, 7).tokens == shorter.tokens
    drafter.rollback(0)
    drafter.load(state, [7] * 30)
    assert drafter.length == 30
    assert drafter.propose(3, 7).tokens == expected.tokens
    drafter.close()


def test_biases_in_attention_are_refused(target: LlamaCppTarget, tiny_pair: Path, tmp_path: Path) -> None:
    config = config_of("full", vocabulary_of(tiny_pair / "target.gguf"))
    config = replace(config, decoder=replace(config.decoder, attention_bias=True))
    path = write_gguf(tmp_path / "drafter.gguf", config, random_weights(config), tiny_pair / "target.gguf")
    with pytest.raises(ModelError, match=r"drafter\.gguf: llama\.cpp runs no drafters with attention biases"):
        LlamaCppDFlashDrafter(path, target, threads=1)


@pytest.mark.parametrize("variant", ["full", "DSpark with confidence", "DFlash 2"])
def test_memory_of_a_drafter_in_torch_is_planned(variant: str, tiny_pair: Path, tmp_path: Path) -> None:
    reference = load_decoder(tiny_pair / "target.gguf")
    config = config_of(variant, reference.config.vocab_size)
    embedding, head = reference.embed_tokens.weight, reference.lm_head.weight
    drafter = DFlashDrafter(load(write_zlab(tmp_path, config, random_weights(config))), embedding, head)
    drafter.observe([7] * 100, np.zeros((100, 192), np.float32))
    tied = embedding.data_ptr() == head.data_ptr()
    parts = torch_drafter_parts(config, 100, len(embedding), config.decoder.hidden_size, tied)
    assert parts[DRAFTER_KV] == drafter.cache_bytes
    assert parts[DRAFTER] == pytest.approx(drafter.weight_bytes, rel=0.02)


IDS = list(range(3, 500, 4))


@pytest.fixture(scope="module")
def folder(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shortened(tiny_pair, tmp_path_factory.mktemp("short") / "pair", IDS)


def test_drafts_match_torch_and_only_needed_logits_are_computed(target: LlamaCppTarget, folder: Path) -> None:
    model = load_decoder(folder / "target.gguf")
    reference = DFlashDrafter(load(folder / "drafter.gguf"), model.embed_tokens.weight, model.lm_head.weight)
    drafter = LlamaCppDFlashDrafter(folder / "drafter.gguf", target, threads=1)
    same, others = list[bool](), np.setdiff1d(np.arange(target.vocab_size), IDS)
    for length in range(1, 21):
        taps = np.random.default_rng(length).normal(size=(1, 192)).astype(np.float32)
        for one in (drafter, reference):
            one.observe([0], taps)
        actual, wanted = drafter.propose(length, 7), reference.propose(length, 7)
        assert set(actual.tokens) <= set(IDS)
        assert np.isfinite(actual.confidence).all()
        same += [a == b for a, b in zip(actual.tokens, wanted.tokens, strict=True)]
        address = llama_library.logits_reader()(drafter.handle)
        assert address
        logits = llama_library.float_rows(address, 8, target.vocab_size)
        assert np.isneginf(logits[:, others]).all()
    drafter.close()
    assert np.mean(same) >= 0.95  # random weights give near ties


Change = Callable[[bytearray, int], None]  # the file, and the offset of tensor d2t


def another_id(raw: bytearray, at: int) -> None:
    raw[at : at + 8] = (4).to_bytes(8, "little")


def out_of_range(raw: bytearray, at: int, token: int = 1 << 40) -> None:
    key = b"localdflash.short_vocabulary"
    start = raw.index(key)
    raw[start : start + len(key)] = b"localdflash.short_something!"
    raw[at : at + 8] = token.to_bytes(8, "little", signed=True)


def other_name(raw: bytearray, at: int) -> None:
    raw[(start := raw.rindex(b"output.weight")) : start + 13] = b"outpud.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (another_id, "d2t is not its short vocabulary; run"),
        (out_of_range, "short vocabulary: ids are not ascending; run"),
        (partial(out_of_range, token=-1), "short vocabulary: id -1 is outside"),
        (other_name, "d2t and output.weight do not belong together; run"),
    ],
)
def test_head_that_would_crash_llama_cpp_is_refused(
    change: Change, message: str, target: LlamaCppTarget, folder: Path, tmp_path: Path
) -> None:
    raw, path = bytearray((folder / "drafter.gguf").read_bytes()), tmp_path / "drafter.gguf"
    change(raw, read_header(folder / "drafter.gguf").tensors["d2t"].offset)
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=message) as caught:
        LlamaCppDFlashDrafter(path, target)
    assert "\n" not in str(caught.value)
    assert api.llama_max_devices() >= 1  # the library still works
