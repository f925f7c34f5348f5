"""The torch target: a row is the same to the bit whatever stands beside it, in drafts and chunks."""

import numpy as np
import pytest
import torch

from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import UsageError
from localdflash.models.shapes.decoder_config import DecoderConfig
from tests.support.lossless import assert_lossless

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


def test_invalid_contexts_are_refused(model: Decoder) -> None:
    for context in (7, 161, -1):
        with pytest.raises(UsageError, match=f"{context} tokens.*8 to 160"):
            TorchTarget(model, context)
