"""A short head in llama.cpp: it reads the rows in the drafter's file, which are checked before it sees them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.llama_drafter import LlamaCppDFlashDrafter
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.dflash_files import load
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import read_header
from tests.support.shortened import shortened

IDS = list(range(3, 500, 4))


@pytest.fixture(scope="module")
def folder(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shortened(tiny_pair, tmp_path_factory.mktemp("short") / "pair", IDS)


def test_it_drafts_like_torch_and_computes_no_other_logits(folder: Path) -> None:
    model = load_decoder(folder / "target.gguf")
    reference = DFlashDrafter(load(folder / "drafter.gguf"), model.embed_tokens.weight, model.lm_head.weight)
    target = LlamaCppTarget(folder / "target.gguf", threads=1, taps=(1, 3, 4))
    drafter = LlamaCppDFlashDrafter(folder / "drafter.gguf", target, threads=1)
    same, others = 0, np.setdiff1d(np.arange(target.vocab_size), IDS)
    for length in range(1, 21):
        taps = np.random.default_rng(length).normal(size=(1, 192)).astype(np.float32)
        for one in (drafter, reference):
            one.observe([0], taps)
        found, wanted = drafter.propose(length, 7), reference.propose(length, 7)
        assert set(found.tokens) <= set(IDS)
        assert np.isfinite(found.confidence).all()
        same += sum(a == b for a, b in zip(found.tokens, wanted.tokens, strict=True))
        address = llama_library.logits_reader()(drafter.handle)
        assert address
        logits = llama_library.float_rows(address, 8, target.vocab_size)
        assert np.isneginf(logits[:, others]).all()
    drafter.close()
    target.close()
    assert same >= 0.95 * 7 * 20  # random weights give near ties


Change = Callable[[bytearray, int], None]  # the file, and the offset of d2t


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
        (another_id, "d2t is not its short vocabulary; make it again"),
        (out_of_range, "the ids of its short vocabulary do not ascend; make it again"),
        (partial(out_of_range, token=-1), "id -1 of its short vocabulary is not one of"),
        (other_name, "d2t and output.weight do not belong together; make it again"),
    ],
)
def test_a_head_that_would_end_the_process_is_refused(
    change: Change, message: str, folder: Path, tmp_path: Path
) -> None:
    raw, path = bytearray((folder / "drafter.gguf").read_bytes()), tmp_path / "drafter.gguf"
    change(raw, read_header(folder / "drafter.gguf").tensors["d2t"].offset)
    path.write_bytes(raw)
    target = LlamaCppTarget(folder / "target.gguf", threads=1, taps=(1, 3, 4))
    with pytest.raises(ModelError, match=message) as caught:
        LlamaCppDFlashDrafter(path, target)
    target.close()
    assert "\n" not in str(caught.value)
    assert api.llama_max_devices() >= 1  # the library lives
