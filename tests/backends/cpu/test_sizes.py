"""The CPU engine's memory, planned from file headers, against loaded models; and refusals of unsupported pairs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.backends.cpu.binding import open_drafter, open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.base.errors import ModelError
from localdflash.engine.checkpoints import MAX_CHECKPOINTS as CHECKPOINTS
from localdflash.models.memory.fit import NO_DRAFTER, UNCHANGED
from localdflash.models.memory.parts import DRAFTER, SCRATCH, TARGET, TARGET_KV
from tests.support import gpt_oss_models, qwen35_models
from tests.support.random_drafters import config_of, random_weights, vocabulary_of, write_zlab
from tests.support.random_models import Shape, write, write_header_alone

SHAPE = Shape("Q8_0", 256, 3, 4, 2, 512, 65536)
EXPERTS = Shape("Q4_0", 256, 2, 4, 2, 64, 4096, experts=4, used=2)

pytestmark = pytest.mark.usefixtures("cpu_engine")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "model.gguf", SHAPE)


@pytest.mark.parametrize("shape", [SHAPE, EXPERTS])
def test_weights_and_cache(shape: Shape, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", shape)
    sizes = CpuSizes(path, None)
    parts = sizes.parts(513, NO_DRAFTER)
    assert parts[TARGET] == open_target(path).nbytes
    assert parts[TARGET_KV] == shape.layers * 2 * shape.kv_heads * shape.head_dim * 528 * 2  # positions in sixteens
    assert parts.keys() == {TARGET, TARGET_KV, SCRATCH}
    assert (sizes.trained, sizes.drafters) == (shape.context, (NO_DRAFTER,))


@pytest.mark.parametrize("architecture", ["qwen35moe", "gpt-oss"])
def test_hybrids_are_planned_with_their_states(
    architecture: str, tmp_path: Path, new_team: Callable[..., ThreadPool]
) -> None:
    case = gpt_oss_models.case_of() if architecture == "gpt-oss" else qwen35_models.case_of(architecture)
    path = case.write(tmp_path / "model.gguf", "Q8_0")
    parts, target = CpuSizes(path, None, 1).parts(512, NO_DRAFTER), CpuTarget(open_target(path), new_team(1), 512)
    states = target.states.nbytes + CHECKPOINTS * target.states.saved_bytes if target.states else 0
    assert parts[TARGET] == target.packed.nbytes
    assert parts[TARGET_KV] == target.cache.nbytes + states
    assert parts[SCRATCH] == pytest.approx(target.scratch_bytes, rel=0.01)


def test_sizes_need_only_headers(model: Path, tiny_pair: Path, tmp_path: Path) -> None:
    hollow = write_header_alone(model, tmp_path / "hollow.gguf")
    assert CpuSizes(model, None).parts(1024, NO_DRAFTER) == CpuSizes(hollow, None).parts(1024, NO_DRAFTER)
    (tmp_path / "config.json").write_bytes((tiny_pair / "config.json").read_bytes())
    target, here = tiny_pair / "target.gguf", tiny_pair / "drafter.safetensors"
    sizes = CpuSizes(target, tmp_path / "drafter.safetensors")
    parts = sizes.parts(256, UNCHANGED)
    assert parts == CpuSizes(target, here).parts(256, UNCHANGED)
    assert parts[DRAFTER] == open_drafter(here).nbytes
    assert sizes.drafters == (UNCHANGED, NO_DRAFTER)


def test_unsupported_pairs_are_refused(tmp_path: Path, tiny_pair: Path) -> None:
    odd = write(tmp_path / "odd.gguf", Shape("Q8_0", 256, 1, 4, 2, 512, 512, head_dim=48))
    with pytest.raises(ModelError, match=r"heads of 48 .*use `--backend llama.cpp`"):
        CpuSizes(odd, None)
    target = tiny_pair / "target.gguf"
    config = config_of("DFlash 2", vocabulary_of(target), conv_group=8)
    with pytest.raises(
        ModelError, match=r"drafters with convolutions of groups of 8 channels .*; use `--backend llama\.cpp`"
    ):
        CpuSizes(target, write_zlab(tmp_path, config, random_weights(config)))
    with pytest.raises(ModelError, match="architecture 'qwen3' is not a DFlash drafter"):
        CpuSizes(tiny_pair / "target.gguf", tiny_pair / "target.gguf")
