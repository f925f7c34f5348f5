"""The CPU target on files as llama.cpp's converter writes them, against Hugging Face's models."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.draft import Draft
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import logits_of, relative, round_inputs
from tests.support.converted_models import MODELS, case_of, ids_of

pytestmark = needs_library


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_near_those_of_hugging_face(name: str, tmp_path: Path, new_team: Callable[..., ThreadPool]) -> None:
    """As near as activations of 8 bits are, which the reference with the same rounding tells."""
    kind, ids = "Q4_1" if name == "llama" else "Q8_0", ids_of(60)
    case = case_of(name, kind)
    path = case.write(tmp_path / "model.gguf", kind)
    target = CpuTarget(open_target(path), new_team())
    found = torch.from_numpy(target.verify(ids[0], Draft("test", ids[1:], [1.0] * 59)).logits.copy())
    wanted = case.model(torch.tensor([ids])).logits[0]
    model = load_decoder(path)
    round_inputs(model)
    same_rounding, _ = logits_of(model, ids)
    assert relative(found[:4], same_rounding[:4]) < 0.02  # a rounding tips over; a wrong turn makes it 1
    assert relative(found, same_rounding) < 0.02
    assert relative(found, wanted) < 0.08
