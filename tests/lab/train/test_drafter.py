"""Training compared with serving: the drafter's inputs must be the same."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.backends.reference.reference_drafter import DFlashDrafter
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.lab.train.dataset import EXAMPLE_DTYPE, Dataset
from localdflash.lab.train.drafter_pass import FrozenTarget, start_from
from localdflash.lab.train.drafter_setup import DrafterOptions, _drafter_config
from localdflash.lab.train.drafter_training import Batch, DrafterRun, batches, block_logits
from localdflash.lab.train.loop import TrainingBudget, initialise
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from tests.support.converted_models import VOCABULARY, case_of

SHAPE = DecoderConfig(64, 32, 2, 2, 1, 16, 64)
CONFIG = DFlashConfig(SHAPE, block_size=4, mask_token_id=63, taps=(0, 1))


def dataset(*examples: tuple[int, int]) -> Dataset:
    """Return examples of (prompt, length); the id at position p of example e is 1000 * e + p."""
    rows, tokens = [], list[int]()
    for number, (prompt, length) in enumerate(examples):
        rows.append((len(tokens), prompt, length, 0))
        tokens += range(1000 * number, 1000 * number + length)
    return Dataset(np.array(tokens, np.uint32), np.array(rows, EXAMPLE_DTYPE))


def test_anchors_labels_and_ids_are_aligned() -> None:
    shapes = {0: (3, 12), 1: (5, 7), 2: (1, 30), 3: (9, 11)}
    run = DrafterRun(CONFIG, TrainingBudget(0.01, 1e-3), 6, 64)
    for batch in islice(batches(dataset(*shapes.values()), run, np.random.default_rng(0)), 40):
        for ids, anchors, labels in zip(batch.ids, batch.anchors, batch.labels, strict=True):
            number = int(ids[0]) // 1000
            prompt, length = shapes[number]
            for anchor, slots in zip(anchors.tolist(), labels.tolist(), strict=True):
                if all(slot == -100 for slot in slots):
                    continue
                assert prompt - 1 <= anchor < length - 1
                positions = [anchor + k if anchor + k < length else None for k in range(1, 4)]
                assert slots == [-100, *(-100 if p is None else 1000 * number + p for p in positions)]
            assert ids[:length].tolist() == list(range(1000 * number, 1000 * number + length))
            assert ids[length:].tolist() == [0] * (len(ids) - length)


def test_a_new_drafter_of_a_qwen2_target_has_its_last_layers_without_biases(tmp_path: Path) -> None:
    """Files of drafters have biases of the output, too, or none."""
    path = case_of("qwen2").write(tmp_path / "target.gguf")
    frozen, options = FrozenTarget(path, torch.arange(VOCABULARY)), DrafterOptions(2, 4, VOCABULARY, mask="m")
    config = _drafter_config(frozen.config, Mock(special=lambda _: 5), (0, 1), options, path)
    drafter = start_from(frozen, config, torch.ones(2 * frozen.config.hidden_size))
    weights = drafter.state_dict()
    assert not any(name.endswith("bias") for name in weights)
    for layer in (0, 1):
        expected = frozen.last_layers(2)[layer]["self_attn.q_proj.weight"]
        assert torch.equal(weights[f"layers.{layer}.self_attn.q_proj.weight"], expected)


@pytest.fixture(scope="module")
def target(tiny_pair: Path) -> Decoder:
    return load_decoder(tiny_pair / "target.gguf")


def recorded(drafter: DFlashDrafter, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Record the logits of the serving path."""
    seen: list[Tensor] = []
    original = drafter.model.logits

    def logits(hidden: Tensor, head: Tensor) -> Tensor:
        seen.append(original(hidden, head))
        return seen[-1]

    monkeypatch.setattr(drafter.model, "logits", logits)
    return seen


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a window smaller than the block": {"window": 3, "sliding": (True, True), "causal": False},
    "scaled": {"embedding_scale": 3.0, "logit_scale": 0.5, "softcap": 2.0},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_logits_equal_serving_logits(
    variant: str, target: Decoder, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(target.config, num_hidden_layers=2)
    config = DFlashConfig(shape, 8, target.config.vocab_size - 1, (1, 3, 4), **VARIANTS[variant])
    torch.manual_seed(1)
    model = DFlash(config).eval()
    initialise(model)
    ids = torch.randint(0, 300, (2, 40))
    anchors = torch.tensor([[0, 5, 11, 39], [1, 12, 23, 30]])
    batch = Batch(ids, anchors, torch.full((2, 4, 8), -100))
    with torch.inference_mode():
        trained = block_logits(model, target, batch)

    embedding, head = target.embed_tokens.weight, target.lm_head.weight
    for row in range(2):
        serving = TorchTarget(target, taps=config.taps)
        drafter = DFlashDrafter(model, embedding, head)
        for block, anchor in enumerate(anchors[row].tolist()):
            fresh = ids[row, drafter.length : anchor].tolist()
            if fresh:  # the context grows as it does when tokens are committed
                drafter.observe(fresh, serving.extend(fresh))
            with monkeypatch.context() as patch:
                seen = recorded(drafter, patch)
                draft = drafter.propose(int(ids[row, anchor]), 7)
            (served,) = seen
            assert (served - trained[row, block, 1:]).abs().max() < 1e-4
            assert list(draft.tokens) == trained[row, block, 1:].argmax(-1).tolist()
