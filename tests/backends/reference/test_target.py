"""The torch target: a row is the same to the bit whatever stands beside it, in drafts and chunks."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import ModelError, UsageError
from localdflash.engine.draft import EMPTY_DRAFT, MAX_DRAFT_TOKENS
from localdflash.models.shapes.decoder_config import DecoderConfig
from tests.support.lossless import assert_lossless, fill, one_by_one, verify

SHAPE = DecoderConfig(
    vocab_size=61,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=64,
    context_length=160,
)
TAPS = (0, 1)


def random_model(shape: DecoderConfig) -> Decoder:
    model = Decoder(shape).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


@pytest.fixture(scope="module")
def model() -> Decoder:
    return random_model(SHAPE)


@pytest.fixture
def target(model: Decoder) -> TorchTarget:
    return TorchTarget(model, taps=TAPS)


def ids_of(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, SHAPE.vocab_size, count)]


def test_is_lossless(target: TorchTarget) -> None:
    assert_lossless(target, ids_of(97 + 33), range(1, 34), chunks=(1, 16, 17), lengths=(0, 1, 50))


def test_extending_gives_the_taps_of_every_token(target: TorchTarget) -> None:
    ids = ids_of(40)
    taps = target.extend(ids)
    target.crop(0)
    assert taps is not None
    assert np.array_equal(taps, np.array([row[1] for row in one_by_one(target, ids)]))


@torch.inference_mode()
def test_it_is_the_decoder_that_it_was_given(target: TorchTarget, model: Decoder) -> None:
    ids = ids_of(40)
    fill(target, ids[:20], 65)
    rows = verify(target, ids[20:])
    hidden, taps = model(torch.tensor([ids]), torch.arange(40), causal, TAPS)
    logits, tapped = model.logits(hidden)[0, 20:].numpy(), torch.cat(taps, -1)[0, 20:].numpy()
    np.testing.assert_allclose(np.stack([row[0] for row in rows]), logits, atol=1e-4)
    np.testing.assert_allclose(np.array([row[1] for row in rows]), tapped, atol=1e-4)


def test_the_context_can_be_filled_to_its_last_token(model: Decoder) -> None:
    target = TorchTarget(model, context=48)
    fill(target, ids_of(47), 65)
    assert target.verify(3, EMPTY_DRAFT).features is None
    target.keep(1)
    assert target.length == target.context == 48


def test_invalid_contexts_and_taps_are_refused(model: Decoder) -> None:
    for context in (7, 161, -1):
        with pytest.raises(UsageError, match=f"{context} tokens.*8 to 160"):
            TorchTarget(model, context)
    for tap in (-1, 2):
        with pytest.raises(ModelError, match=f"tap {tap}.*0 to 1"):
            TorchTarget(model, taps=(0, tap))


def test_a_free_head_is_used() -> None:
    free = random_model(replace(SHAPE, tie_word_embeddings=False))
    target = TorchTarget(free)
    seen = target.verify(1)
    assert seen.logits.shape == (1, SHAPE.vocab_size)
    free.lm_head.weight *= 2
    np.testing.assert_allclose(target.verify(1).logits, 2 * seen.logits, rtol=1e-5)
    assert (target.context, target.vocab_size, target.max_width) == (160, 61, MAX_DRAFT_TOKENS + 1)
