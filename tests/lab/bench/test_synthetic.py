"""Files of random weights: as llama.cpp and our own reader want them, with numbers that keep a network sane."""

from pathlib import Path

import llama_cpp
import pytest
import torch

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.lab.scripts import synthetic
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.dflash_file import config_of_gguf
from localdflash.models.weights import gguf
from localdflash.models.weights.ggml_types import GGMLType


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthetic") / "target.gguf"
    synthetic.write_target(path, synthetic.TINY, "tiny")
    return path


def test_a_drafter_fits_its_target(tmp_path: Path) -> None:
    synthetic.write_drafter(tmp_path / "drafter.gguf", synthetic.TINY_DRAFTER, GGMLType.Q4_K, "tiny")
    header = gguf.read_header(tmp_path / "drafter.gguf")
    config = config_of_gguf(header)
    assert (config.block_size, config.mask_token_id, config.taps) == (16, 511, (1, 3, 5))
    check_fit(config, 256, 512, 8, "drafter")
    assert float(gguf.load_tensor(header, "fc.weight").std()) == pytest.approx(synthetic.STD, rel=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", synthetic.HEADS)
def test_llama_cpp_and_torch_agree_on_it(kind: GGMLType, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    synthetic.write_target(target, synthetic.TINY, "tiny", kind)
    model = llama_cpp.Llama(str(target), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    model.eval([1, 2, 3, 4])
    theirs = torch.tensor(model.scores[3].copy())
    model.close()
    ours = TorchTarget(load_decoder(target))
    ours.extend([1, 2, 3])
    logits = torch.from_numpy(ours.verify(4, EMPTY_DRAFT).logits[0])
    assert float((logits - theirs).abs().max()) < 0.05 * float(theirs.abs().max())
