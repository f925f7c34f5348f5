"""The torch target: a row is the same to the bit whatever stands beside it, in drafts and chunks."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import ModelError, UsageError
from localdflash.engine.draft import MAX_NODES, NOTHING, Draft
from localdflash.models.shapes.decoder_config import DecoderConfig

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

Row = tuple[NDArray[np.float32], NDArray[np.float32]]  # logits and taps


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


def fill(target: TorchTarget, ids: list[int], chunk: int = 65) -> None:
    target.crop(0)
    for start in range(0, len(ids), chunk):
        target.extend(ids[start : start + chunk])


def verify(target: TorchTarget, tokens: Sequence[int]) -> list[Row]:
    """Rows of the first token as anchor and the others as its draft."""
    seen = target.verify(tokens[0], Draft("test", tokens[1:], [1.0] * (len(tokens) - 1)))
    assert seen.taps is not None
    assert seen.logits.shape == (len(tokens), SHAPE.vocab_size)
    assert seen.taps.shape == (len(tokens), len(TAPS) * SHAPE.hidden_size)
    return [(logits.copy(), taps.copy()) for logits, taps in zip(seen.logits, seen.taps, strict=True)]


def one_by_one(target: TorchTarget, tokens: Sequence[int]) -> list[Row]:
    """The same rows from plain decoding."""
    rows = []
    for token in tokens:
        rows += verify(target, [token])
        target.keep(1)
    return rows


def equal(a: Row, b: Row) -> bool:
    return np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])


@pytest.mark.parametrize("length", [0, 1, 97])
def test_rows_are_bit_equal_for_every_width(target: TorchTarget, length: int) -> None:
    tokens = ids_of(33, seed=1)
    fill(target, ids_of(length))
    expected = one_by_one(target, tokens)
    target.crop(length)
    for width in range(1, 34):
        for row, seen in enumerate(verify(target, tokens[:width])):
            assert equal(seen, expected[row]), (width, row)
        target.keep(0)
    assert target.length == length


@pytest.mark.parametrize("chunk", [1, 3, 16, 17, 64])
def test_how_a_prompt_is_cut_does_not_change_a_bit(target: TorchTarget, chunk: int) -> None:
    prompt = ids_of(90)
    fill(target, prompt)
    expected = verify(target, [5])[0]
    fill(target, prompt, chunk)
    assert equal(verify(target, [5])[0], expected)


def test_extending_gives_the_taps_of_every_token(target: TorchTarget) -> None:
    ids = ids_of(40)
    taps = target.extend(ids)
    target.crop(0)
    assert taps is not None
    assert np.array_equal(taps, np.stack([row[1] for row in one_by_one(target, ids)]))


def test_kept_rows_are_the_sequence_and_the_rest_is_gone(target: TorchTarget) -> None:
    prompt, tokens = ids_of(20), ids_of(6, seed=2)
    fill(target, prompt)
    verify(target, tokens)
    target.keep(4)
    assert target.length == 24
    after = verify(target, [9, 8])
    fill(target, [*prompt, *tokens[:4]])
    assert all(map(equal, verify(target, [9, 8]), after))


def test_a_cropped_sequence_goes_on_as_if_it_had_never_been_longer(target: TorchTarget) -> None:
    prompt = ids_of(50)
    fill(target, prompt[:30])
    expected = verify(target, [7, 8])
    fill(target, prompt)
    target.crop(30)
    assert target.length == 30
    assert all(map(equal, verify(target, [7, 8]), expected))


@pytest.mark.parametrize("length", [0, 1, 50])
def test_a_saved_state_goes_on_bit_equal(target: TorchTarget, model: Decoder, length: int) -> None:
    fill(target, ids_of(length))
    state = target.save()
    expected = verify(target, [7, 8])
    other = TorchTarget(model, taps=TAPS)
    fill(other, ids_of(70, seed=9))
    other.load(state, length)
    assert other.length == length
    assert all(map(equal, verify(other, [7, 8]), expected))


@torch.inference_mode()
def test_it_is_the_decoder_that_it_was_given(target: TorchTarget, model: Decoder) -> None:
    ids = ids_of(40)
    fill(target, ids[:20])
    rows = verify(target, ids[20:])
    hidden, taps = model(torch.tensor([ids]), torch.arange(40), causal, TAPS)
    logits, tapped = model.logits(hidden)[0, 20:].numpy(), torch.cat(taps, -1)[0, 20:].numpy()
    np.testing.assert_allclose(np.stack([row[0] for row in rows]), logits, atol=1e-4)
    np.testing.assert_allclose(np.stack([row[1] for row in rows]), tapped, atol=1e-4)


def test_the_context_can_be_filled_to_its_last_token(model: Decoder) -> None:
    target = TorchTarget(model, context=48)
    fill(target, ids_of(47))
    assert target.verify(3, NOTHING).taps is None
    target.keep(1)
    assert target.length == target.context == 48


@pytest.mark.parametrize("context", [7, 161, -1])
def test_a_context_that_the_model_was_not_trained_for_is_refused(model: Decoder, context: int) -> None:
    with pytest.raises(UsageError, match=f"{context} tokens.*8 to 160"):
        TorchTarget(model, context)


@pytest.mark.parametrize("tap", [-1, 2, 3])
def test_a_tap_that_the_model_does_not_have_is_refused(model: Decoder, tap: int) -> None:
    with pytest.raises(ModelError, match=f"tap {tap}.*0 to 1"):
        TorchTarget(model, taps=(0, tap))


def test_a_free_head_is_used() -> None:
    free = random_model(replace(SHAPE, tie_word_embeddings=False))
    target = TorchTarget(free)
    seen = target.verify(1)
    assert seen.logits.shape == (1, SHAPE.vocab_size)
    free.lm_head.weight *= 2
    np.testing.assert_allclose(target.verify(1).logits, 2 * seen.logits, rtol=1e-5)
    assert (target.context, target.vocab_size, target.max_rows) == (160, 61, MAX_NODES + 1)
