"""The shapes of targets that only the CPU engine runs, from their metadata; what it would get wrong is refused."""

from pathlib import Path
from typing import Any

import pytest

from localdflash.backends.cpu.model_source import check_target_file
from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.target_config import target_config
from localdflash.models.weights.gguf import read_header
from tests.support import gpt_oss_models, qwen35_models


def gpt_oss(folder: Path, **numbers: Any) -> DecoderConfig:
    """The shape that a file says which has these numbers, "scaling__type" for "scaling.type"; None leaves one out."""
    case = gpt_oss_models.case_of()
    case.numbers |= {name.replace("__", "."): value for name, value in numbers.items()}
    case.numbers = {name: value for name, value in case.numbers.items() if value is not None}
    return target_config(read_header(case.write(folder / "model.gguf")))


def test_windows_of_gpt_oss(tmp_path: Path) -> None:
    def windows(pattern: Any) -> tuple[int, ...]:
        return gpt_oss(tmp_path, attention__sliding_window_pattern=pattern).windows

    assert windows(None) == (24, 0, 24, 0)
    assert windows(4) == (24, 24, 24, 0)
    assert windows([False, True, True, False]) == (0, 24, 24, 0)
    for pattern in (0, [True], "often"):
        with pytest.raises(ModelError, match=r"gpt-oss\.attention\.sliding_window_pattern is"):
            windows(pattern)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"rope__scaling__type": "linear"}, "RoPE scaled by 'linear'"),
        ({"rope__scaling__attn_factor": 0.5}, r"rope\.scaling\.attn_factor is 0\.5"),
        ({"rope__scaling__yarn_beta_fast": "many"}, "expected a number"),
        ({"rope__scaling__yarn_beta_slow": 0.0}, "YaRN by a factor of .* makes no sense"),
        ({"rope__scaling__factor": 3e38}, r"YaRN by a factor of .*e\+38 .* makes no sense"),
        ({"rope__freq_base_swa": 500.0}, "a RoPE of their own"),
        ({"rope__dimension_count": 16}, "whole heads"),
        ({"expert_weights_scale": 2.5}, r"expert_weights_scale is 2\.5"),
        ({"attention__head_count_kv": 3}, "cannot share"),
        ({"expert_used_count": 7}, "is 7, but expert_count is 6"),
        ({"attention__sliding_window": None}, "is missing"),
    ],
)
def test_what_gpt_oss_may_not_say(tmp_path: Path, numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        gpt_oss(tmp_path, **numbers)


def qwen35(folder: Path, architecture: str = "qwen35", **numbers: Any) -> DecoderConfig:
    """As `gpt_oss`."""
    case = qwen35_models.case_of(architecture)
    case.numbers |= {name.replace("__", "."): value for name, value in numbers.items()}
    case.numbers = {name: value for name, value in case.numbers.items() if value is not None}
    return target_config(read_header(case.write(folder / "model.gguf")))


def test_which_layers_of_qwen35_are_recurrent(tmp_path: Path) -> None:
    unsaid: dict[str, Any] = {"attention__recurrent_layers": None}
    assert qwen35(tmp_path, **unsaid).recurrent == (True, True, True, False)
    assert qwen35(tmp_path, **unsaid, full_attention_interval=2).recurrent == (True, False, True, False)
    said = qwen35(tmp_path, attention__recurrent_layers=[False, True, True, True])
    assert (said.recurrent, said.recurrent_layers) == ((False, True, True, True), 3)
    with pytest.raises(ModelError, match="recurrent_layers is"):
        qwen35(tmp_path, attention__recurrent_layers=[True])


def test_blocks_that_predict_further_ahead_are_left_out(tmp_path: Path) -> None:
    """Their tensors lie in the file, and nothing reads them."""
    case = qwen35_models.case_of("qwen35moe")
    for name in [name for name in case.tensors if name.startswith("blk.3.")]:
        case.tensors[name.replace("blk.3.", "blk.4.")] = case.tensors[name]
    case.tensors["blk.4.nextn.eh_proj.weight"] = case.tensors["output.weight"]
    path = case.write(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"blk\.4\..* has no place"):
        check_target_file(path)
    case.numbers |= {"block_count": 5, "nextn_predict_layers": 1}
    source = check_target_file(case.write(path))
    assert source.config.num_hidden_layers == 4
    assert not any(part.name.startswith("layers.4.") for part in source.parts)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"rope__scaling__type": "yarn"}, "scaled RoPE"),
        ({"rope__dimension_count": 7}, "make no sense"),
        ({"rope__dimension_count": 64}, "expected 1 to 32"),
        ({"nextn_predict_layers": 4}, "make no sense"),
        ({"ssm__state_size": None}, r"ssm\.state_size is missing"),
    ],
)
def test_what_qwen35_may_not_say(tmp_path: Path, numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        qwen35(tmp_path, **numbers)
