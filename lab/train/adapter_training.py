"""Training loop of an adapter, up to a total number of tokens over any number of restarts.

The learning rate rises, stays, and falls over the last part of the tokens. A resumed run may request another number of
tokens. Only the order of the examples is random, and it depends on a seed, so a run that is killed and resumed gives
the same numbers as an uninterrupted run.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from localdflash.base.errors import TrainingError
from localdflash.lab.train.adapter import Adapter
from localdflash.lab.train.adapter_attention import attend_within
from localdflash.lab.train.adapter_data import LANGUAGES, FimDataset, FimExample
from localdflash.lab.train.adapter_pass import Pass, PassLoss, group_examples, weighted_loss
from localdflash.lab.train.resumable_run import Reporter, ResumableRun, State, clock_on
from localdflash.lab.train.training_pictures import draw_adapter_training

GPU_STEP_TOKENS = 8192  # estimate: with fewer a GPU would wait for kernel launches
GPU_TOKEN_BYTES = 2 << 20  # estimate for SmolLM2-135M: activations of a token that the backward pass needs


@dataclass(frozen=True)
class AdapterSchedule:
    """Training schedule: tokens, learning rate, intervals of saving and measuring."""

    tokens: int  # total, prompts included
    learning_rate: float = 1e-3
    step_tokens: int = 2048  # minimum per optimizer step
    pass_tokens: int = 768  # so that the activations fit into a CPU's caches
    seed: int = 0
    warm_up: float = 0.005  # first share of the tokens, over which the rate rises
    decline: float = 0.3  # last share of the tokens, over which the rate falls
    save_seconds: float = 600.0
    measure_seconds: float = 2700.0
    measured: int = 24  # held-out examples per language

    def rate(self, seen: int) -> float:
        """Return the learning rate after `seen` tokens."""
        done = seen / self.tokens
        return self.learning_rate * max(min(1.0, (done + 1e-3) / self.warm_up, (1 - done) / self.decline), 0.01)


def schedule_on(device: str, tokens: int, learning_rate: float, seed: int) -> AdapterSchedule:
    """Return the schedule for a device: a GPU takes larger steps, in one pass if its memory suffices."""
    schedule = AdapterSchedule(tokens, learning_rate, seed=seed)
    if device == "cpu":
        return schedule
    free_tokens = torch.cuda.mem_get_info()[0] // GPU_TOKEN_BYTES
    return replace(schedule, step_tokens=GPU_STEP_TOKENS, pass_tokens=min(free_tokens, 2 * GPU_STEP_TOKENS))


class AdapterRun(ResumableRun):
    """Training run in a folder: `last.pt`, `log.jsonl`, `training.png`."""

    def __init__(
        self, adapter: Adapter, train: FimDataset, held_out: FimDataset, folder: Path, schedule: AdapterSchedule
    ):
        self._device = adapter.embedding.weight.device.type
        super().__init__(folder, clock_on(self._device), schedule.save_seconds)
        self.adapter, self.schedule = adapter, schedule
        self._train, self._held_out = train, held_out
        self._parameters = dict(adapter.parameters())
        matrices = [p for name, p in self._parameters.items() if not name.startswith("embed")]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices}, {"params": [adapter.embedding.rows]}], betas=(0.9, 0.98), weight_decay=0.0
        )
        self.position = self.tokens = 0
        self.resume()

    def train(self, reporter: Reporter) -> None:
        """Train until all tokens were seen; Ctrl-C saves a checkpoint."""
        order, last_measured = self._train.endless(self.schedule.seed, self.position), time.monotonic()
        if not self.step:
            self._log_measurement(reporter)
        with self.timed():
            while self.tokens < self.schedule.tokens:
                values = self._one_step(order)
                self._log(values)
                clock = " of processor time" if self._device == "cpu" else ""
                pace = f"{self.tokens / self.spent:,.0f} tokens a second{clock}"
                text = f"step {self.step}  {self.tokens:,} tokens  loss {values['loss']:.3f}  {pace}"
                reporter.move(self.tokens / self.schedule.tokens, text)
                self.save_if_due()
                if time.monotonic() - last_measured > self.schedule.measure_seconds:
                    self._log_measurement(reporter)
                    last_measured = time.monotonic()
        self._log_measurement(reporter)

    def _one_step(self, order: Iterator[int]) -> dict[str, float]:
        examples, count = list[FimExample](), 0
        while count < self.schedule.step_tokens:
            examples.append(self._train[next(order)])
            count += len(examples[-1].ids)
        groups = group_examples(examples, self.schedule.pass_tokens)
        passes = [Pass.of(group, self._device) for group in groups]
        total_weight = sum(batch.weights.sum().item() for batch in passes)
        results = list[PassLoss]()
        for batch in passes:
            result = self._loss(batch)
            (result.total / total_weight).backward()
            results.append(PassLoss(*(each.detach() for each in result)))
        total = sum(result.total.item() for result in results)
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), 1.0).item()
        self.check_finite(total, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.tokens)
        with self.counted_update():
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            self.adapter.merge()
            self.position, self.tokens = self.position + len(examples), self.tokens + count
        middle = torch.cat([batch.middle for batch in passes])
        loss = torch.cat([result.losses for result in results])[middle].mean().item()
        right = torch.cat([result.is_exact for result in results])[middle].float().mean().item()
        return {"weighted": total / total_weight, "norm": norm, "loss": loss, "right": right}

    def _loss(self, batch: Pass) -> PassLoss:
        attend = attend_within(batch.lengths, batch.ids.device)
        hidden, _ = self.adapter.model(batch.ids[None], batch.positions[None], attend)
        return weighted_loss(hidden[0, batch.label_rows], batch.labels, batch.weights, self.adapter.embedding)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return the loss and the share of exactly predicted middles on the first held-out examples.

        `held_out` and `exact` cover all languages without chat; `loss_LANGUAGE` and `exact_LANGUAGE` one language.
        """
        by_language: dict[str, float] = {}
        losses, exact = list[Tensor](), list[bool]()
        languages = self._held_out.index["language"]
        for language in np.unique(languages):
            own_losses, own_exact = list[Tensor](), list[bool]()
            for number in np.flatnonzero(languages == language)[: self.schedule.measured]:
                example = self._held_out[int(number)]
                result = self._loss(Pass.of([example], self._device))
                own_losses.append(result.losses)
                own_exact.append(bool(result.is_exact.all()))
            by_language[f"loss_{LANGUAGES[language]}"] = torch.cat(own_losses).mean().item()
            if LANGUAGES[language] != "chat":
                by_language[f"exact_{LANGUAGES[language]}"] = sum(own_exact) / len(own_exact)
                losses, exact = losses + own_losses, exact + own_exact
        return {"held_out": torch.cat(losses).mean().item(), "exact": sum(exact) / len(exact), **by_language}

    def _log_measurement(self, reporter: Reporter) -> None:
        values = self.measure()
        self._log(values)
        draw_adapter_training(self.log, self.folder / "training.png")
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
        reporter.say(f"step {self.step}  {self.tokens:,} tokens  {numbers}")

    def _log(self, values: Mapping[str, float]) -> None:
        super()._log({"tokens": self.tokens, **values})

    def state(self) -> State:
        """See `ResumableRun`."""
        return {
            "position": self.position,
            "tokens": self.tokens,
            "seed": self.schedule.seed,
            "examples": len(self._train),
            "parameters": {name: p.detach() for name, p in self._parameters.items()},
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: State) -> None:
        """See `ResumableRun`."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(state["parameters"][name])
        self._optimizer.load_state_dict(state["optimizer"])
        self.position, self.tokens = state["position"], state["tokens"]
        if (state["seed"], state["examples"]) != (self.schedule.seed, len(self._train)):
            raise TrainingError(f"{self.checkpoint}: trained on other examples, or with another --seed")
        self.adapter.merge()
