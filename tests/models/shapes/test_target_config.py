"""Shapes of targets that only the CPU engine runs, from their metadata; unsupported metadata is refused."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gguf import Keys
from hypothesis import given
from hypothesis import strategies as st

from localdflash.backends.cpu.model_source import check_target_file
from localdflash.base.errors import ModelError
from localdflash.loading.load_pair import recommended_sampling
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.target_config import target_config
from localdflash.models.shapes.yarn import MAX_FACTOR, yarn_factors
from localdflash.models.weights.gguf import read_header
from tests.support import gpt_oss_models, qwen35_models
from tests.support.converted_models import Case


def config_of(case: Case, folder: Path, numbers: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a file with these numbers, "scaling__type" for "scaling.type"; None removes one."""
    case.numbers |= {name.replace("__", "."): value for name, value in numbers.items()}
    case.numbers = {name: value for name, value in case.numbers.items() if value is not None}
    return target_config(read_header(case.write(folder / "model.gguf")))


def gpt_oss(folder: Path, **numbers: Any) -> DecoderConfig:
    return config_of(gpt_oss_models.case_of(), folder, numbers)


def test_windows_of_gpt_oss(tmp_path: Path) -> None:
    def windows(pattern: Any) -> tuple[int, ...]:
        return gpt_oss(tmp_path, attention__sliding_window_pattern=pattern).windows

    assert windows(None) == (24, 0, 24, 0)
    assert windows(4) == (24, 24, 24, 0)
    assert windows([False, True, True, False]) == (0, 24, 24, 0)
    for pattern in (0, [True], "often"):
        with pytest.raises(ModelError, match=r"gpt-oss\.attention\.sliding_window_pattern: expected"):
            windows(pattern)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"rope__scaling__type": "linear"}, "RoPE scaling 'linear'"),
        ({"rope__scaling__yarn_beta_slow": 0.0}, "invalid YaRN scaling .factor .* beta_slow 0"),
        ({"rope__scaling__factor": 3e38}, r"invalid YaRN scaling .factor .*e\+38"),
        ({"rope__freq_base_swa": 500.0}, "a separate RoPE of sliding layers"),
        ({"rope__dimension_count": 16}, "partial RoPE"),
        ({"expert_weights_scale": 2.5}, r"expert_weights_scale 2\.5"),
        ({"attention__head_count_kv": 3}, "cannot share"),
    ],
)
def test_invalid_gpt_oss_metadata_is_refused(tmp_path: Path, numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        gpt_oss(tmp_path, **numbers)


def qwen35(folder: Path, **numbers: Any) -> DecoderConfig:
    return config_of(qwen35_models.case_of("qwen35"), folder, numbers)


def test_which_layers_of_qwen35_are_recurrent(tmp_path: Path) -> None:
    unsaid: dict[str, Any] = {"attention__recurrent_layers": None}
    assert qwen35(tmp_path, **unsaid).recurrent == (True, True, True, False)
    assert qwen35(tmp_path, **unsaid, full_attention_interval=2).recurrent == (True, False, True, False)
    message = qwen35(tmp_path, attention__recurrent_layers=[False, True, True, True])
    assert (message.recurrent, message.recurrent_layers) == ((False, True, True, True), 3)
    with pytest.raises(ModelError, match="recurrent_layers: expected 4 flags"):
        qwen35(tmp_path, attention__recurrent_layers=[True])


def test_mtp_blocks_are_ignored(tmp_path: Path) -> None:
    """Their tensors are in the file, and are not read."""
    case = qwen35_models.case_of("qwen35moe")
    for name in [name for name in case.tensors if name.startswith("blk.3.")]:
        case.tensors[name.replace("blk.3.", "blk.4.")] = case.tensors[name]
    case.tensors["blk.4.nextn.eh_proj.weight"] = case.tensors["output.weight"]
    path = case.write(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"unexpected tensor blk\.4\."):
        check_target_file(path)
    case.numbers |= {"block_count": 5, "nextn_predict_layers": 1}
    source = check_target_file(case.write(path))
    assert source.config.num_hidden_layers == 4
    assert not any(part.name.startswith("layers.4.") for part in source.parts)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"rope__scaling__type": "yarn"}, "scaled RoPE"),
        ({"rope__dimension_count": 7}, "rotary dimension .7"),
        ({"rope__dimension_count": 64}, "expected 1 to 32"),
        ({"nextn_predict_layers": 4}, "layer count .0"),
    ],
)
def test_invalid_qwen35_metadata_is_refused(tmp_path: Path, numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        qwen35(tmp_path, **numbers)


ANY = st.floats(width=32) | st.sampled_from((0.0, 1.0, -1.0, MAX_FACTOR, 1 / MAX_FACTOR, 3.4e38, 1e-45))


@given(st.sampled_from(("theta", "factor", "fast", "slow")), ANY)
def test_one_odd_number_is_refused_or_harmless(name: str, value: float) -> None:
    usual: dict[str, Any] = {"head_dim": 64, "theta": 1e6, "factor": 8.0, "context": 4096} | {name: value}
    with suppress(ModelError):
        assert all(map(math.isfinite, yarn_factors("x", **usual)))


WRITTEN = {
    Keys.General.SAMPLING_TEMP: 0.6,
    Keys.General.SAMPLING_TOP_K: 20,
    Keys.General.SAMPLING_TOP_P: 0.95,
    Keys.General.SAMPLING_MIN_P: 0.05,
    Keys.General.SAMPLING_PENALTY_REPEAT: 1.05,
    Keys.General.SAMPLING_MIROSTAT: 2,
    "general.name": "x",
}


def test_what_the_file_says() -> None:
    assert recommended_sampling(WRITTEN) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
    }
    assert recommended_sampling({}) == {}
