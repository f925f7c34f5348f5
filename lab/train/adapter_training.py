"""The loop that trains an adapter: so many tokens in all, over as many sittings as it takes.

The rate rises, stays, and falls to nothing over the last part of the tokens that are wanted; asked for fewer, a run
ends sooner, and for more, it goes on. Nothing is random but the order of the examples, which a seed and a position
give, so a run that was killed has after its last checkpoint the numbers of one that was not.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from localdflash.base.errors import TrainingError
from localdflash.lab.train.adapter import Adapter
from localdflash.lab.train.adapter_attention import within
from localdflash.lab.train.adapter_data import LANGUAGES, ExampleIds, FillData
from localdflash.lab.train.adapter_pass import Pass, PassLoss, packed, weighted_loss
from localdflash.lab.train.resumable_run import Reporter, ResumableRun, State
from localdflash.lab.train.training_pictures import draw_adapter_training

LOG = "log.jsonl"


@dataclass(frozen=True)
class AdapterSchedule:
    """Training schedule: tokens, learning rate, intervals of saving and measuring."""

    tokens: int  # in all, prompts included
    learning_rate: float = 1e-3
    step_tokens: int = 2048
    seed: int = 0
    warm_up: float = 0.005  # share of the tokens
    decline: float = 0.3  # share of the tokens over which the rate falls
    save_seconds: float = 600.0
    measure_seconds: float = 2700.0
    measured: int = 24  # held-out examples of a language

    def rate(self, seen: int) -> float:
        """Return the learning rate after `seen` tokens."""
        done = seen / self.tokens
        return self.learning_rate * max(min(1.0, (done + 1e-3) / self.warm_up, (1 - done) / self.decline), 0.01)


class AdapterRun(ResumableRun):
    """Training run in a folder: `last.pt`, `log.jsonl`, `training.png`."""

    def __init__(self, adapter: Adapter, train: FillData, held_out: FillData, folder: Path, schedule: AdapterSchedule):
        super().__init__(folder, time.process_time, schedule.save_seconds)
        self.adapter, self.schedule = adapter, schedule
        self._train, self._held_out = train, held_out
        self._parameters = dict(adapter.parameters())
        matrices = [p for name, p in self._parameters.items() if not name.startswith("embed")]
        self._stepper = torch.optim.AdamW(
            [{"params": matrices}, {"params": [adapter.embedding.rows]}], betas=(0.9, 0.98), weight_decay=0.0
        )
        self.position = self.tokens = 0
        self.resume()
        self._forget_later_steps()

    def train(self, reporter: Reporter) -> None:
        """Train until all tokens were seen; Ctrl-C saves a checkpoint."""
        order, measured = self._train.endless(self.schedule.seed, self.position), time.monotonic()
        if not self.step:
            self._measured(reporter)
        with self.sitting():
            while self.tokens < self.schedule.tokens:
                found = self._one_step(order)
                self.count_step()
                self._log(found)
                pace = f"{self.tokens / self.spent:.0f} tokens a second of processor time"
                text = f"step {self.step}  {self.tokens:,} tokens  loss {found['loss']:.3f}  {pace}"
                reporter.move(self.tokens / self.schedule.tokens, text)
                self.save_if_due()
                if time.monotonic() - measured > self.schedule.measure_seconds:
                    self._measured(reporter)
                    measured = time.monotonic()
        self._measured(reporter)

    def _one_step(self, order: Iterator[int]) -> dict[str, float]:
        examples, count = list[ExampleIds](), 0
        while count < self.schedule.step_tokens:
            examples.append(self._train[next(order)])
            count += len(examples[-1].ids)
        passes = [Pass.of(some) for some in packed(examples)]
        whole = sum(one.weights.sum().item() for one in passes)
        total, losses, right = 0.0, list[Tensor](), list[Tensor]()
        for one in passes:
            found = self._loss(one)
            (found.total / whole).backward()
            total += found.total.item()
            losses.append(found.losses[one.middle])
            right.append(found.right[one.middle])
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), 1.0).item()
        self.check_finite(total, norm)
        for group in self._stepper.param_groups:
            group["lr"] = self.schedule.rate(self.tokens)
        self._stepper.step()
        self._stepper.zero_grad(set_to_none=True)
        self.adapter.merge()
        self.position, self.tokens = self.position + len(examples), self.tokens + count
        found_of_middles = {"loss": torch.cat(losses).mean().item(), "right": torch.cat(right).float().mean().item()}
        return {"weighted": total / whole, "norm": norm, **found_of_middles}

    def _loss(self, one: Pass) -> PassLoss:
        hidden, _ = self.adapter.model(one.ids[None], one.positions[None], within(one.lengths))
        return weighted_loss(hidden[0, one.places], one.labels, one.weights, self.adapter.embedding)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return the loss and the share of exact middles on the first held-out examples, by language."""
        found: dict[str, float] = {}
        losses, exact = list[Tensor](), list[bool]()
        languages = self._held_out.index["language"]
        for code in np.unique(languages):
            own, whole = list[Tensor](), list[bool]()
            for number in np.flatnonzero(languages == code)[: self.schedule.measured]:
                example = self._held_out[int(number)]
                passed = self._loss(Pass.of([example]))
                own.append(passed.losses)
                whole.append(bool(passed.right.all()))
            found[f"loss_{LANGUAGES[code]}"] = torch.cat(own).mean().item()
            if LANGUAGES[code] != "chat":
                found[f"exact_{LANGUAGES[code]}"] = sum(whole) / len(whole)
                losses, exact = losses + own, exact + whole
        return {"held_out": torch.cat(losses).mean().item(), "exact": sum(exact) / len(exact), **found}

    def _measured(self, reporter: Reporter) -> None:
        found = self.measure()
        self._log(found)
        draw_adapter_training(self.folder / LOG, self.folder / "training.png")
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
        reporter.say(f"step {self.step}  {self.tokens:,} tokens  {numbers}")

    def _log(self, values: dict[str, float]) -> None:
        row = {"step": self.step, "tokens": self.tokens, "cpu_minutes": round(self.spent / 60, 1)}
        row |= {name: round(value, 4) for name, value in values.items()}
        with (self.folder / LOG).open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def state(self) -> State:
        """See `ResumableRun`."""
        return {
            "position": self.position,
            "tokens": self.tokens,
            "seed": self.schedule.seed,
            "examples": len(self._train),
            "parameters": {name: p.detach() for name, p in self._parameters.items()},
            "optimizer": self._stepper.state_dict(),
        }

    def restore(self, state: State) -> None:
        """See `ResumableRun`."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(state["parameters"][name])
        self._stepper.load_state_dict(state["optimizer"])
        self.position, self.tokens = state["position"], state["tokens"]
        if (state["seed"], state["examples"]) != (self.schedule.seed, len(self._train)):
            raise TrainingError(f"{self.checkpoint}: trained on other examples, or with another --seed")
        self.adapter.merge()

    def _forget_later_steps(self) -> None:
        """Remove log lines after the checkpoint, and a torn last line: those steps are repeated."""
        log = self.folder / LOG
        if log.exists():
            whole = [line for line in log.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
            log.write_text("".join(line for line in whole if json.loads(line)["step"] <= self.step), encoding="utf-8")
