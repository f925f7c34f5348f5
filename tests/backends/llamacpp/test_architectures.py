"""Targets of every supported architecture in llama.cpp, against Hugging Face's models in float32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH_WITH_STATES
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.draft import Draft
from tests.backends.cpu.rounded import relative
from tests.support.converted_models import Case, ids_of
from tests.support.target_models import (
    ARCHITECTURES,
    NO_FILLERS,
    RECURRENT,
    WIDE,
    WITHOUT_WAY_BACK,
    case_of,
    taps_of,
)

COUNT = 120  # longer than the windows


class TableOfGelu(nn.Module):
    """GELU of ggml's CPU backend: input and result are rounded to float16."""

    def forward(self, x: Tensor) -> Tensor:
        found = F.gelu(x.half().float(), approximate="tanh").half().float()
        return torch.where(x >= 10, x, torch.where(x <= -10, 0.0, found))


@pytest.fixture(scope="module", params=(*ARCHITECTURES, "llama 3.1", *WITHOUT_WAY_BACK))
def case(request: pytest.FixtureRequest) -> Case:
    found = case_of(request.param)
    if found.architecture == "gemma4":
        for layer in found.model.model.layers:
            layer.mlp.act_fn = TableOfGelu()
    return found


@pytest.fixture
def target(case: Case, tmp_path: Path) -> Iterator[LlamaCppTarget]:
    mode = NO_FILLERS if case.architecture in WITHOUT_WAY_BACK else WIDE
    mode, taps = mode.limit_width(MAX_WIDTH_WITH_STATES), taps_of(case.architecture)
    found = LlamaCppTarget(case.write(tmp_path / "model.gguf"), 256, 1, taps, mode)
    yield found
    found.close()


@torch.inference_mode()
def test_logits_and_taps_are_those_of_hugging_face(case: Case, target: LlamaCppTarget) -> None:
    """Gemma's float16 rounding differs after some rows."""
    ids, logits, taps, width = ids_of(COUNT), [], [], 1
    for start in iter(lambda: target.length, COUNT):
        rows = ids[start : start + width]
        seen = target.verify(rows[0], Draft("test", rows[1:], [1.0] * (len(rows) - 1)))
        logits.append(torch.from_numpy(seen.logits.copy()))
        assert (seen.features is not None) == bool(target.taps)
        if seen.features is not None:
            taps.append(torch.from_numpy(seen.features.copy()))
        target.keep(len(rows))
        width = width % 13 + 1
    assert target.is_recurrent == (case.architecture in (*RECURRENT, *WITHOUT_WAY_BACK))
    expected = case.model(torch.tensor([ids]), output_hidden_states=True)
    found = torch.cat(logits)
    tolerance = 5e-4 if case.architecture == "gemma4" else 2e-5
    assert relative(found[:3], expected.logits[0, :3]) < 2e-5
    assert relative(found, expected.logits[0]) < tolerance
    if taps:
        after = torch.cat([expected.hidden_states[tap + 1][0] for tap in target.taps], -1)
        assert relative(torch.cat(taps), after) < tolerance
