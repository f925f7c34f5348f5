"""Qwen3.5 on the CPU engine: delta nets, gated attention, a mixture with an expert for all, against Hugging Face's."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localdflash.cpu.packed import open_target
from localdflash.cpu.target import CpuTarget
from localdflash.cpu.team import Team
from localdflash.llamacpp.target import LlamaCppTarget
from localdflash.llamacpp.ways import Way
from tests.cpu.conftest import needs_library
from tests.cpu.rounded import relative
from tests.cpu.test_gpt_oss import logits_of, wanted_of
from tests.support.converted_models import ids_of
from tests.support.llama_ways import WIDE
from tests.support.qwen35_models import case_of

pytestmark = needs_library
NewTeam = Callable[..., Team]


@pytest.mark.parametrize("architecture", ["qwen35", "qwen35moe"])
def test_logits(architecture: str, tmp_path: Path, new_team: NewTeam) -> None:
    case, ids = case_of(architecture, "Q8_0"), ids_of(120)
    path = case.write(tmp_path / "model.gguf", "Q8_0")
    target = CpuTarget(open_target(path), new_team())
    found, exact = logits_of(target, ids), wanted_of(case, ids)
    print(relative(found[:1], exact[:1]), relative(found[:8], exact[:8]), relative(found, exact))
    theirs = LlamaCppTarget(path, 256, 1, way=Way(WIDE.flags, tuple(range(1, 14))))
    print(relative(logits_of(theirs, ids), exact))
    theirs.close()
