"""Training on the GPU compared with the CPU: the same examples, and losses that differ by bfloat16's rounding."""

from pathlib import Path

import pytest
import torch

from localdflash.backends.reference.decoder import Decoder
from localdflash.lab.train.adapter_training import AdapterRun
from localdflash.lab.train.loop import initialise
from tests.support.tiny_adapter import SCHEDULE, TINY, numbers, tiny_adapter, tiny_examples


def test_an_adapter_learns_as_on_the_cpu(device: torch.device, tmp_path: Path) -> None:
    data = tiny_examples(tmp_path / "train", 60), tiny_examples(tmp_path / "held_out", 9)
    on_cpu = AdapterRun(tiny_adapter(), *data, tmp_path / "cpu", SCHEDULE)
    run = AdapterRun(tiny_adapter(device.type, torch.bfloat16), *data, tmp_path / "gpu", SCHEDULE)
    orders = [data[0].endless(0, 0) for _ in range(2)]
    pairs = list(zip((on_cpu, run), orders, strict=True))
    losses = torch.tensor([[each._one_step(order)["loss"] for each, order in pairs] for _ in range(12)])
    assert (losses[-3:] < losses[:3].mean()).all()
    torch.testing.assert_close(losses[:, 1], losses[:, 0], rtol=0.03, atol=0.03)
    run.save()
    resumed = AdapterRun(tiny_adapter(), *data, tmp_path / "gpu", SCHEDULE)
    assert resumed.tokens == run.tokens == on_cpu.tokens
    for one, other in zip(numbers(resumed), numbers(run), strict=True):
        assert torch.equal(one, other.cpu())
    assert resumed._one_step(data[0].endless(0, resumed.position))["loss"] < losses[0, 0]


def test_cached_answers_are_those_of_a_whole_pass(device: torch.device) -> None:
    pytest.importorskip("gguf")
    from localdflash.lab.train import gpu_answers
    from localdflash.lab.train.batched_answers import OpenAnswer
    from localdflash.lab.train.drafter_run import autocast_on
    from localdflash.lab.train.questions import Question
    from localdflash.lab.train.regenerate import answer

    torch.manual_seed(0)
    model = Decoder(TINY)
    initialise(model)
    model = model.to(device).requires_grad_(False)
    prompts = [torch.randint(0, 64, (length,)).numpy() for length in (3, 9, 9, 14, 40)]
    with autocast_on(device.type):
        generated = answer(model, prompts, [30, 12, 30, 30, 30], frozenset({7}))
    answers = [
        OpenAnswer(Question("talk", "", False), len(prompt), [*prompt.tolist(), *new])
        for prompt, new in zip(prompts, generated, strict=True)
    ]
    gpu_answers._read(model, (0, 1), answers)
    agreed = [
        new in likely["id"][:2]
        for each, ids in zip(answers, generated, strict=True)
        for new, likely in zip(ids, each.likely[0], strict=True)
    ]
    assert sum(agreed) > 0.95 * len(agreed)
    assert [each.taps[0].shape for each in answers] == [(len(each.ids) - 1, 64) for each in answers]
