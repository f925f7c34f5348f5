"""config.json of a drafter: every field is applied, or refused by name."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_json import REFUSED, config_of_json
from localdflash.models.shapes.fingerprint import TrainedFor

# Small version of the published 4B and 27B configurations.
JSON: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 16,
    "dflash_config": {"mask_token_id": 500, "target_layer_ids": [1, 9, 17]},
    "num_target_layers": 36,
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "max_position_embeddings": 40960,
    "layer_types": ["full_attention"] * 3,
    "sliding_window": None,
    "use_sliding_window": False,
    "attention_bias": False,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "vocab_size": 512,
}
SLIDING = ["sliding_attention", "sliding_attention", "full_attention"]


def config(**changes: Any) -> DFlashConfig:
    return config_of_json(JSON | changes, "config.json")


def nested(**changes: Any) -> dict[str, Any]:
    return {"dflash_config": JSON["dflash_config"] | changes}


def without(name: str) -> dict[str, Any]:
    fields = {key: value for key, value in JSON.items() if key != name}
    fields["dflash_config"] = {key: value for key, value in JSON["dflash_config"].items() if key != name}
    return fields


def refusal(document: object) -> str:
    with pytest.raises(ModelError) as caught:
        config_of_json(document, "some/config.json")
    message = str(caught.value)
    assert message.startswith("some/config.json: ")
    assert "\n" not in message
    return message


# config.json


def test_published_configuration() -> None:
    actual = config()
    shape = actual.decoder
    assert (actual.block_size, actual.mask_token_id, actual.taps) == (16, 500, (1, 9, 17))
    assert (actual.window, actual.causal) == (None, None)
    assert [actual.is_sliding(i) or actual.is_causal(i) for i in range(3)] == [False] * 3
    assert (shape.vocab_size, shape.hidden_size, shape.num_hidden_layers, shape.intermediate_size) == (512, 64, 3, 96)
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (4, 2, 16)
    assert (shape.rope_theta, shape.rms_norm_eps, shape.context_length) == (1e6, 1e-6, 40960)
    assert (shape.attention_bias, actual.embedding_scale, actual.logit_scale, actual.softcap) == (False, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({}, [True, True, False]),  # not specified: sliding layers are causal
        ({"is_causal": False}, [False] * 3),
        ({"is_causal": True}, [True] * 3),
        (nested(causal=True), [True] * 3),
        (nested(causal=True) | {"is_causal": False}, [False] * 3),
    ],
)
def test_causality(changes: dict[str, Any], causal: list[bool]) -> None:
    actual = config(layer_types=SLIDING, sliding_window=128, use_sliding_window=True, **changes)
    assert [actual.is_causal(i) for i in range(3)] == causal


@pytest.mark.parametrize(
    ("changes", "window", "sliding"),
    [
        ({"layer_types": SLIDING, "sliding_window": 128, "use_sliding_window": True}, 128, [True, True, False]),
        ({"layer_types": SLIDING, "sliding_window": 128, "use_sliding_window": False}, None, [False] * 3),
        ({"sliding_window": 128, "use_sliding_window": True}, None, [False] * 3),
        (nested(use_swa=True, swa_window_size=64), 64, [True] * 3),
        (nested(use_swa=True) | {"sliding_window": 32}, 32, [True] * 3),
    ],
)
def test_windows(changes: dict[str, Any], window: int | None, sliding: list[bool]) -> None:
    actual = config(**changes)
    assert actual.window == window
    assert [actual.is_sliding(i) for i in range(3)] == sliding


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(name: str, inside: bool) -> None:
    changes = nested(**{name: 4}) if inside else {name: 4}
    message = refusal(JSON | changes)
    assert name in message
    assert str(REFUSED[name][0]) in message
    config(**(nested(**{name: None}) if inside else {name: None}))


@pytest.mark.parametrize("name", ["vocab_size", "rope_theta", "block_size", "target_layer_ids"])
def test_missing_fields_are_named(name: str) -> None:
    assert refusal(without(name)).endswith(f"{name} is missing")


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


@given(name=st.sampled_from(sorted({*JSON, "is_causal", "rope_parameters"})), value=JUNK)
def test_any_value_gives_a_configuration_or_a_refusal(name: str, value: object) -> None:
    try:
        actual = config(**{name: value})
    except ModelError as error:
        message = str(error)
        assert "\n" not in message
    else:
        assert actual.decoder.num_hidden_layers == 3 or name == "num_hidden_layers"


# DSpark and DFlash 2


SECOND = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 256, "selector_top_k": 16}


def test_drafter_kinds() -> None:
    assert (config().kind, config().drafts, config().first_slot) == ("dflash", 15, 1)
    spark = config(architectures=["Qwen3DSparkModel"], markov_rank=256, enable_confidence_head=True)
    assert (spark.kind, spark.markov_rank, spark.has_confidence_head) == ("dspark", 256, True)
    assert (spark.from_anchor, spark.drafts) == (True, 16)  # the default of its architecture
    assert not config(architectures=["Qwen3DSparkModel"], markov_rank=8, sample_from_anchor=False).from_anchor
    second = config(**nested(**SECOND), architectures=["DFlash2DraftModel"], is_causal=False)
    assert (second.kind, second.drafts) == ("dflash2", 15)
    assert (second.conv_kernel, second.conv_group, second.selector_rank, second.selector_top_k) == (2, 16, 256, 16)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "invalid YaRN scaling (factor 0.5"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 8, "mscale": 1.0}}, "mscale"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "type"),
        ({"draft_vocab_size": 100}, "draft_vocab_size"),
        ({"markov_rank": 8, "markov_head_type": "rnn"}, "markov_head_type"),
        ({"projector_type": "lilicorr"}, "projector_type"),
        ({"architectures": ["LiLiCorrDraftModel"]}, "a LiLiCorr head"),
        ({"rope_is_neox_style": False}, "rope_is_neox_style"),
        ({"gating": "per-head"}, "gates in the attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        (nested(use_swa=True), "sliding_window"),
        ({"hidden_size": 2**40}, "hidden_size"),
        (nested(target_layer_ids=[]), "taps"),
        ({"num_hidden_layers": 10**9, "layer_types": None}, "layers"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"block_size": 1}, "block"),
        (nested(**SECOND) | {"sample_from_anchor": True}, "a selector with sample_from_anchor"),
        (nested(**SECOND) | {"markov_rank": 8}, "a Markov head together with DFlash 2"),
        (nested(**(SECOND | {"conv_kernel_size": 17})), "conv_kernel_size 17"),
        (nested(selector_rank=8), "only some of"),
        ({"enable_confidence_head": True}, "a confidence head without a Markov head"),
        ({"markov_rank": 8} | nested(output_multiplier=0.5), "a Markov head with scaled logits"),
    ],
)
def test_invalid_fields_are_named(changes: dict[str, Any], named: str) -> None:
    assert named in refusal(JSON | changes)


# YaRN


@pytest.mark.parametrize("truncate", [{}, {"truncate": False}])
@pytest.mark.parametrize(
    "fields",
    [
        {"factor": 32.0, "original_max_position_embeddings": 4096},
        {"factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 8.0, "beta_slow": 2.0},
        {"factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.25},
    ],
)
def test_yarn_is_that_of_hugging_face(fields: dict[str, Any], truncate: dict[str, bool]) -> None:
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "yarn", "rope_theta": 1e6} | fields | truncate
    theirs = Qwen3Config(hidden_size=64, num_attention_heads=4, head_dim=64, rope_parameters=scaling)
    expected, magnitude = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    shape = config(head_dim=64, rope_theta=1e6, rope_scaling={"type": "yarn"} | fields | truncate).decoder
    plain = [1e6 ** (-i / 64) for i in range(0, 64, 2)]
    actual = [frequency / factor for frequency, factor in zip(plain, shape.rope_factors, strict=True)]
    assert actual == pytest.approx(expected.tolist(), rel=1e-5)
    assert shape.rope_magnitude == pytest.approx(magnitude)


# Speculators


SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "dspark",
    "transformer_layer_config": {"model_type": "qwen3", "num_hidden_layers": 3, "hidden_size": 2560, "head_dim": 80},
    "aux_hidden_state_layer_ids": [2, 10, 18],
    "mask_token_id": 500,
    "draft_vocab_size": 32000,
    "markov_rank": 256,
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "sample_from_anchor": True,
}


def test_missing_speculators_fields_have_qwen3_defaults() -> None:
    from transformers import Qwen3Config

    actual, theirs = config_of_json(SPECULATORS, ""), Qwen3Config()
    shape = actual.decoder
    assert (actual.kind, actual.taps, actual.block_size) == ("dspark", (1, 9, 17), 8)
    assert (actual.from_anchor, actual.has_confidence_head) == (True, True)
    assert (shape.hidden_size, shape.num_hidden_layers, shape.head_dim) == (2560, 3, 80)
    assert (shape.vocab_size, shape.intermediate_size) == (theirs.vocab_size, theirs.intermediate_size)
    assert (shape.num_attention_heads, shape.num_key_value_heads) == (32, theirs.num_key_value_heads)
    assert (shape.rms_norm_eps, shape.attention_bias) == (theirs.rms_norm_eps, theirs.attention_bias)
    assert shape.context_length == theirs.max_position_embeddings
    assert theirs.rope_parameters is not None
    assert shape.rope_theta == theirs.rope_parameters["rope_theta"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"speculators_model_type": "eagle3"}, "speculators_model_type is 'eagle3'"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "model_type"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids is missing"),
        ({"markov_head_type": "gated"}, "markov_head_type"),
        ({"projector_type": "domino"}, "projector_type"),
        ({"confidence_head_with_markov": False}, "confidence_head_with_markov"),
    ],
)
def test_invalid_speculators_fields_are_refused(changes: dict[str, Any], problem: str) -> None:
    assert problem in refusal(SPECULATORS | changes)


# Mismatches of drafter and target


@pytest.mark.parametrize(
    ("hidden", "vocabulary", "blocks", "changes", "problem"),
    [
        (128, 512, 36, {}, "hidden size 64, but the target's is 128"),
        (64, 511, 36, {}, "vocabulary of 512, but the target's has 511"),
        (64, 512, 18, {}, "taps layer 17 .expected 0 to 16 of this target."),  # the last block's output is normed
        (64, 512, 36, nested(mask_token_id=512), "mask token 512 is outside"),
    ],
)
def test_mismatch_with_the_target_is_named(
    hidden: int, vocabulary: int, blocks: int, changes: Any, problem: str
) -> None:
    with pytest.raises(ModelError, match=f"x: .*{problem}"):
        check_fit(config(**changes), hidden, vocabulary, blocks, "x")


# Fields that only localdflash writes


TARGET = {"name": "target.gguf", "kind": "llama, 30 blocks of 576, Q8_0", "digest": "ab" * 16}


def test_a_short_vocabulary_and_the_target_of_training() -> None:
    actual = config(localdflash={"short_vocabulary": [0, 4, 511], "target": TARGET | {"tau": 2.25}})
    assert actual.short == (0, 4, 511)
    expected = TrainedFor(TARGET["name"], TARGET["kind"], TARGET["digest"], 2.25)
    assert actual.trained_for == expected
    assert config(localdflash={"target": TARGET}).trained_for == replace(expected, tau=0.0)


@pytest.mark.parametrize(
    ("ours", "problem"),
    [
        ({"short_vocabulary": [4, 4]}, "short vocabulary: ids are not ascending; run"),
        ({"short_vocabulary": [4, 512]}, "short vocabulary: id 512 is outside 0 to 511; run"),
        ({"short_vocabulary": [-1, 4]}, "short_vocabulary: expected an integer of 0 to 2^31 - 1, got -1"),
        ({"target": TARGET | {"name": "\x1b[2J"}}, "target.name"),
        (["short_vocabulary"], "localdflash: expected an object, got ['short_vocabulary']"),
    ],
)
def test_invalid_localdflash_fields_are_refused(ours: object, problem: str) -> None:
    assert problem in refusal(JSON | {"localdflash": ours})
