"""config.json of a Hugging Face folder: what is read from it, and which models are refused by it."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from localdflash.backends.cuda.checkpoint_config import decoder_config_of_json
from localdflash.base.errors import ModelError
from tests.support.checkpoint_folders import CONFIGS, HEADS, LLAMA3

CPU = torch.device("cpu")


def config_of(**changes: Any) -> Any:
    document = {**CONFIGS[changes.pop("model", "qwen3")], **changes}
    return decoder_config_of_json({k: v for k, v in document.items() if v != "absent"}, "config.json")


def test_factors_of_llama3_are_those_of_transformers() -> None:
    rope = {**LLAMA3, "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    plain = 500000.0 ** -(torch.arange(0, 128, 2) / 128)
    for form in ({"rope_parameters": rope, "rope_theta": None}, {"rope_scaling": rope, "rope_theta": 500000.0}):
        found = config_of(**{"model": "llama", "head_dim": 128, "rope_scaling": None, **form})
        assert found.rope_theta == 500000.0
        torch.testing.assert_close(torch.tensor(found.rope_factors), plain / scaled, rtol=1e-5, atol=1e-5)


def test_defaults_of_fields() -> None:
    assert config_of(head_dim="absent").head_dim == 128
    assert config_of(model="llama").head_dim == 64
    assert config_of(num_key_value_heads=None).num_key_value_heads == HEADS
    assert config_of(rope_theta="absent", tie_word_embeddings="absent").rope_theta == 1e4
    assert config_of(model="qwen3_moe", num_experts="absent", num_local_experts=8).num_experts == 8
    assert not config_of(model="qwen3_moe", norm_topk_prob="absent").norm_topk_prob
    assert config_of(rope_scaling={"type": "default"}).rope_factors == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gemma3"}, r"'qwen3', 'qwen3_moe', 'llama' models, not 'gemma3'; use a GGUF .*llama\.cpp"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"rope_type 'yarn'; use a GGUF .*llama\.cpp"),
        ({"rope_scaling": {"type": "linear"}}, "does not run type 'linear'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor '0.5'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"model": "qwen3_moe", "decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"model": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"model": "qwen3_moe", "num_experts_per_tok": 5}, "num_experts_per_tok is '5'"),
        ({"hidden_size": "absent"}, "hidden_size is missing; download"),
        ({"hidden_size": True}, "hidden_size is 'True', which makes no sense"),
        ({"vocab_size": -1}, "vocab_size is '-1'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is '3'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is 'nan'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"rope_scaling": [1]}, "rope_scaling is"),
        ({"rope_scaling": LLAMA3}, "original_max_position_embeddings is missing"),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64, "high_freq_factor": 1.0}},
            "high_freq_factor is '1.0'",
        ),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        config_of(**changes)
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)
