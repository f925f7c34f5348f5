"""The decoder against Hugging Face's Qwen3: logits, hidden states, taps, mixtures of experts."""

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from localdflash.backends.reference.decoder import Decoder, SparseMLP, causal
from localdflash.models.shapes.decoder_config import DecoderConfig

SHAPE = DecoderConfig(
    vocab_size=97,
    hidden_size=48,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,  # not hidden_size / heads: Qwen3 keeps them apart
    intermediate_size=80,
    rope_theta=1e6,
    rms_norm_eps=1e-5,
    context_length=256,
)
SHAPES = {
    "grouped": SHAPE,
    "free head": replace(SHAPE, tie_word_embeddings=False),
    "biases": replace(SHAPE, attention_bias=True),
    "one key-value head": replace(SHAPE, num_key_value_heads=1, rope_theta=1e4, rms_norm_eps=1e-6),
    "a key-value head each": replace(SHAPE, num_key_value_heads=6),
}


def reference(shape: DecoderConfig) -> Qwen3ForCausalLM:
    """Hugging Face's model of this shape, every weight random, norms and biases included."""
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        rms_norm_eps=shape.rms_norm_eps,
        max_position_embeddings=shape.context_length,
        tie_word_embeddings=shape.tie_word_embeddings,
        attention_bias=shape.attention_bias,
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim == 1 else 0.15
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.copy_(parameter + noise if parameter.ndim == 1 else noise)
    return model


@torch.inference_mode()
@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_hidden_states_are_those_of_hugging_face(name: str) -> None:
    theirs, ours = reference(SHAPES[name]), Decoder(SHAPES[name])
    ours.load_state_dict({key.removeprefix("model."): value for key, value in theirs.state_dict().items()})
    ids = torch.randint(0, 97, (2, 70), generator=torch.Generator().manual_seed(2))
    expected = theirs(ids, output_hidden_states=True)
    hidden, taps = ours(ids, torch.arange(70), causal, (2, 0, 1))
    assert float(expected.logits.abs().max()) > 0.5  # there is something to compare
    torch.testing.assert_close(hidden, expected.hidden_states[-1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.logits(hidden), expected.logits, atol=1e-4, rtol=1e-4)
    for tap, values in zip((2, 0, 1), taps, strict=True):  # block k's output is hidden_states[k + 1]
        torch.testing.assert_close(values, expected.hidden_states[tap + 1], atol=1e-4, rtol=1e-4)
    positions = torch.stack((torch.arange(70), torch.arange(100, 240, 2)))  # they may start anywhere and differ by row
    hidden, _ = ours(ids, positions, causal)
    torch.testing.assert_close(ours.logits(hidden), theirs(ids, position_ids=positions).logits, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize(("chosen", "normalised"), [(1, True), (3, True), (3, False)])
def test_a_mixture_of_experts_is_that_of_hugging_face(chosen: int, normalised: bool) -> None:
    config = Qwen3MoeConfig(
        hidden_size=48,
        moe_intermediate_size=40,
        num_experts=8,
        num_experts_per_tok=chosen,
        norm_topk_prob=normalised,
        experts_implementation="eager",
    )
    theirs, ours = Qwen3MoeSparseMoeBlock(config), SparseMLP(mixture(chosen, normalised))
    generator = torch.Generator().manual_seed(5)
    for parameter in theirs.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    ours.gate.weight.copy_(theirs.gate.weight)
    gate, up = theirs.experts.gate_up_proj.chunk(2, 1)
    ours.experts.gate_proj.weight.copy_(gate)
    ours.experts.up_proj.weight.copy_(up)
    ours.experts.down_proj.weight.copy_(theirs.experts.down_proj)
    x = torch.randn(2, 21, 48, generator=generator)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-4, rtol=1e-4)


def mixture(chosen: int, normalised: bool) -> DecoderConfig:
    return replace(
        SHAPE, num_experts=8, num_experts_per_tok=chosen, moe_intermediate_size=40, norm_topk_prob=normalised
    )


@torch.inference_mode()
def test_of_equally_likely_experts_the_first_are_chosen() -> None:
    sparse = SparseMLP(mixture(3, normalised=True))
    sparse.gate.weight.zero_()
    sparse.gate.weight[5, 0] = 1.0
    ids, weights = sparse.route(torch.ones(2, 48))
    assert ids.tolist() == [[5, 0, 1]] * 2
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))
