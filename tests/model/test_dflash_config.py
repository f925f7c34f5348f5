"""config.json of a drafter: every field is honoured, or refused by its name."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.errors import ModelError
from localdflash.model.dflash_config import REFUSED_JSON, DFlashConfig, check_fit, config_of_json
from localdflash.model.fingerprint import TrainedFor

# What the published 4B and 27B checkpoints look like, in small.
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


def test_the_published_form() -> None:
    found = config()
    shape = found.decoder
    assert (found.block_size, found.mask_token_id, found.taps) == (16, 500, (1, 9, 17))
    assert (found.window, found.causal) == (None, None)
    assert [found.is_sliding(i) or found.is_causal(i) for i in range(3)] == [False] * 3
    assert (shape.vocab_size, shape.hidden_size, shape.num_hidden_layers, shape.intermediate_size) == (512, 64, 3, 96)
    assert (shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim) == (4, 2, 16)
    assert (shape.rope_theta, shape.rms_norm_eps, shape.context_length) == (1e6, 1e-6, 40960)
    assert (shape.attention_bias, found.embedding_scale, found.logit_scale, found.softcap) == (False, 1.0, 1.0, 0.0)


def test_the_block_size_may_stand_in_either_place() -> None:
    inside = without("block_size")
    inside["dflash_config"]["block_size"] = 10
    assert config_of_json(inside, "").block_size == 10


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": 1e7}, 1e7),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5),
        ({"rope_parameters": {"rope_theta": 5e5}}, 5e5),
        ({"rope_scaling": {"type": "default"}}, 1e6),
        ({"partial_rotary_factor": 1.0}, 1e6),
    ],
)
def test_rope(changes: dict[str, Any], theta: float) -> None:
    assert config(**changes).decoder.rope_theta == theta


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({}, [True, True, False]),  # not told: the sliding layers are
        ({"is_causal": False}, [False] * 3),
        ({"is_causal": True}, [True] * 3),
        ({"is_causal": None}, [True, True, False]),
        (nested(causal=False), [False] * 3),
        (nested(causal=True), [True] * 3),
        (nested(causal=True) | {"is_causal": False}, [False] * 3),
    ],
)
def test_causality(changes: dict[str, Any], causal: list[bool]) -> None:
    found = config(layer_types=SLIDING, sliding_window=128, use_sliding_window=True, **changes)
    assert [found.is_causal(i) for i in range(3)] == causal


@pytest.mark.parametrize(
    ("changes", "window", "sliding"),
    [
        ({"layer_types": SLIDING, "sliding_window": 128, "use_sliding_window": True}, 128, [True, True, False]),
        ({"layer_types": SLIDING, "sliding_window": 128, "use_sliding_window": None}, 128, [True, True, False]),
        ({"layer_types": SLIDING, "sliding_window": 128, "use_sliding_window": False}, None, [False] * 3),
        ({"sliding_window": 128, "use_sliding_window": True}, None, [False] * 3),
        ({"layer_types": None, "sliding_window": 128, "use_sliding_window": True}, None, [False] * 3),
        (nested(use_swa=True, swa_window_size=64), 64, [True] * 3),
        (nested(use_swa=True) | {"sliding_window": 32}, 32, [True] * 3),
        (nested(use_swa=False, swa_window_size=64), None, [False] * 3),
    ],
)
def test_windows(changes: dict[str, Any], window: int | None, sliding: list[bool]) -> None:
    found = config(**changes)
    assert found.window == window
    assert [found.is_sliding(i) for i in range(3)] == sliding


def test_scales_and_biases() -> None:
    scales = nested(input_embedding_scale=8.0, output_multiplier=0.196, final_logit_softcapping=20)
    found = config(attention_bias=True, **scales)
    assert (found.embedding_scale, found.logit_scale, found.softcap) == (8.0, 0.196, 20.0)
    assert found.decoder.attention_bias


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", REFUSED_JSON)
def test_what_is_not_supported_is_refused_by_name(name: str, inside: bool) -> None:
    changes = nested(**{name: 4}) if inside else {name: 4}
    message = refusal(JSON | changes)
    assert name in message
    assert REFUSED_JSON[name] in message
    config(**(nested(**{name: None}) if inside else {name: None}))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 32}}, "rope_type"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "type"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6}}, "rope_type"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e6}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"layer_types": ["full_attention"] * 2}, "layer_types"),
        ({"layer_types": SLIDING, "use_sliding_window": True}, "sliding_window"),
        (nested(use_swa=True), "sliding_window"),
    ],
)
def test_other_refusals_are_by_name(changes: dict[str, Any], named: str) -> None:
    assert named in refusal(JSON | changes)


@pytest.mark.parametrize(
    "name",
    [
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("intermediate_size", "rope_theta", "block_size", "mask_token_id", "target_layer_ids"),
    ],
)
def test_missing_fields_are_named(name: str) -> None:
    assert refusal(without(name)).endswith(f"{name} is missing")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": "big"}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 2**40}, "hidden_size"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rms_norm_eps": [1]}, "rms_norm_eps"),
        ({"is_causal": "yes"}, "is_causal"),
        ({"layer_types": 3}, "layer_types"),
        ({"dflash_config": "none"}, "dflash_config"),
        (nested(target_layer_ids=7), "target_layer_ids"),
        (nested(target_layer_ids=[1, "2"]), "target_layer_ids"),
        (nested(target_layer_ids=[]), "taps"),
        ({"num_hidden_layers": 10**9, "layer_types": None}, "layers"),
        ({"num_hidden_layers": 0, "layer_types": None}, "layers"),
        ({"num_key_value_heads": 3}, "heads"),
        ({"num_key_value_heads": 0}, "heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"block_size": 1}, "block"),
        ({"vocab_size": 0}, "size"),
    ],
)
def test_values_that_make_no_sense_are_named(changes: dict[str, Any], named: str) -> None:
    assert named in refusal(JSON | changes)


@pytest.mark.parametrize("document", [None, 3, "text", []])
def test_a_document_that_is_no_object(document: object) -> None:
    refusal(document)


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


@given(name=st.sampled_from(sorted({*JSON, "is_causal", "rope_parameters"})), value=JUNK)
def test_any_value_gives_a_configuration_or_a_refusal(name: str, value: object) -> None:
    try:
        found = config(**{name: value})
    except ModelError as error:
        message = str(error)
        assert "\n" not in message
    else:
        assert found.decoder.num_hidden_layers == 3 or name == "num_hidden_layers"


# The fit of a pair


def test_a_fitting_target() -> None:
    check_fit(config(), hidden_size=64, vocab_size=512, blocks=19, where="x")


@pytest.mark.parametrize(
    ("hidden", "vocabulary", "blocks", "changes", "said"),
    [
        (128, 512, 36, {}, "hidden size 64, but the target's is 128"),
        (64, 511, 36, {}, "vocabulary of 512, but the target's has 511"),
        (64, 512, 18, {}, "taps block 17, but the target has blocks 0 to 16"),  # the last block's output is normed
        (64, 512, 36, nested(mask_token_id=512), "mask token 512 is outside"),
    ],
)
def test_what_does_not_fit_is_named(hidden: int, vocabulary: int, blocks: int, changes: Any, said: str) -> None:
    with pytest.raises(ModelError, match=f"x: .*{said}"):
        check_fit(config(**changes), hidden, vocabulary, blocks, "x")


# What only localdflash writes


TARGET = {"name": "target.gguf", "kind": "llama, 30 blocks of 576, Q8_0", "digest": "ab" * 16}


def test_nothing_of_ours_is_no_reason_to_say_anything() -> None:
    for found in (config(), config(localdflash=None), config(localdflash={})):
        assert (found.short, found.trained_for) == ((), None)


def test_a_short_vocabulary_and_the_target_of_training() -> None:
    found = config(localdflash={"short_vocabulary": [0, 4, 511], "target": TARGET | {"tau": 2.25}})
    assert found.short == (0, 4, 511)
    wanted = TrainedFor(TARGET["name"], TARGET["kind"], TARGET["digest"], 2.25)
    assert found.trained_for == wanted
    assert config(localdflash={"target": TARGET}).trained_for == replace(wanted, tau=0.0)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({"short_vocabulary": [4, 4]}, "the ids of its short vocabulary do not ascend; make it again with"),
        ({"short_vocabulary": [9, 4]}, "do not ascend"),
        ({"short_vocabulary": [4, 512]}, "id 512 of its short vocabulary is not one of 512; make it again with"),
        ({"short_vocabulary": [-1, 4]}, "short_vocabulary is '[-1, 4]', which makes no sense"),
        ({"short_vocabulary": [1.5]}, "short_vocabulary is '[1.5]'"),
        ({"short_vocabulary": ["a"]}, "short_vocabulary"),
        ({"short_vocabulary": 7}, "short_vocabulary is '7'"),
        ({"target": TARGET | {"tau": "good"}}, "target.tau is 'good'"),
        ({"target": TARGET | {"name": "\x1b[2J"}}, "target.name"),
        ({"target": TARGET | {"kind": "x" * 300}}, "target.kind"),
        (["short_vocabulary"], "localdflash is"),
    ],
)
def test_what_of_ours_is_refused(ours: object, said: str) -> None:
    assert said in refusal(JSON | {"localdflash": ours})
