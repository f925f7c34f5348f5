"""Training loop of a drafter on stored answers: constant rate, averaged weights, checkpoints, a log.

The averaged weights are measured and exported, so a run may be stopped at any time.
"""

import copy
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from localdflash.backends.reference.dflash_model import DFlash
from localdflash.base.errors import TrainingError
from localdflash.lab.train import short_vocabulary
from localdflash.lab.train.draft_blocks import NO_TOKEN, Blocks, BlockSource
from localdflash.lab.train.drafter_pass import (
    FrozenTarget,
    count_accepted,
    count_verify_steps,
    logits_of,
    weighted_loss,
)
from localdflash.lab.train.muon import Muon
from localdflash.lab.train.pair_export import our_fields, write_drafter_for, write_drafter_safetensors
from localdflash.lab.train.resumable_run import Reporter, ResumableRun, State, clock_on, smoothed
from localdflash.lab.train.training_pictures import draw_drafter_training
from localdflash.lab.train.training_prompts import KINDS
from localdflash.models.weights.gguf import read_header

FUSE_SHARE = 0.1  # factor on the learning rate of `fc`, which sums thousands of channels


@dataclass(frozen=True)
class Schedule:
    """Training schedule: learning rate, batch size, intervals of saving and measuring."""

    learning_rate: float = 3e-3
    sequences: int = 8  # per step
    anchors: int = 48  # positions per answer that drafts start from
    in_prompt: int = 0  # further anchors per sequence, in its prompt
    warm_up: int = 15  # steps over which the rate rises
    average: float = 0.98  # decay of the weight average, reached after the first steps
    save_seconds: float = 300.0  # of wall-clock time
    measure_seconds: float = 300.0  # of processor time
    measured: int = 24  # number of held-out answers in a measurement


class StoredAnswersRun(ResumableRun):
    """Training run in a folder: `last.pt`, `log.jsonl`, `training.png`. `sizes`: see drafter_pass.py."""

    def __init__(self, drafter: DFlash, frozen: FrozenTarget, sizes: Tensor, folder: Path, schedule: Schedule) -> None:
        self._device = sizes.device.type
        super().__init__(folder, clock_on(self._device), schedule.save_seconds)
        self.drafter, self.frozen, self.sizes, self.schedule = drafter, frozen, sizes, schedule
        self.average = copy.deepcopy(drafter).requires_grad_(False)
        self.optimizers = build_optimizers(drafter, schedule.learning_rate)
        self.tau = 0.0  # tokens per verify step on held-out answers at the last measurement
        self._slots = [drafter.config.block_size, drafter.config.first_slot]
        self.resume()

    def train(self, source: BlockSource, minutes: float, reporter: Reporter) -> None:
        """Train for `minutes` more; Ctrl-C saves a checkpoint."""
        schedule = self.schedule
        rng = np.random.default_rng([7, self.step])
        stream = source.endless(schedule.sequences, schedule.anchors, rng, schedule.in_prompt, self._device)
        began, last_measured, seconds, smooth = time.monotonic(), self.spent, minutes * 60, dict[str, float]()
        with self.timed():
            while (elapsed := time.monotonic() - began) < seconds:
                smooth = smoothed(smooth, self._one_step(stream))
                left = f"{(seconds - elapsed) / 60:.1f} min left"
                reporter.move(elapsed / seconds, f"step {self.step}  {_numbers(smooth)}  {left}")
                if self.step % 10 == 0:
                    self._log(smooth)
                if self.spent - last_measured > schedule.measure_seconds:
                    self._log_measurement(source, reporter)
                    last_measured = self.spent
                self.save_if_due()
        self._log_measurement(source, reporter)

    def _one_step(self, stream: Iterator[Blocks]) -> dict[str, float]:
        rate = self.schedule.learning_rate * min(1.0, (self.step + 1) / self.schedule.warm_up)
        blocks = next(stream)
        with autocast_on(self._device):
            logits = logits_of(self.drafter, self.frozen, blocks, self.sizes).float()
        loss, weight = weighted_loss(logits, blocks)
        (loss / (2.0 * self.schedule.sequences * self.schedule.anchors)).backward()
        norm = nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0).item()
        self.check_finite(loss.item(), norm)
        decay = min(self.schedule.average, self.step / (self.step + 10))
        with self.counted_update(), torch.no_grad():
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate * group.get("share", 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            for mean, current in zip(self.average.parameters(), self.drafter.parameters(), strict=True):
                mean.lerp_(current, 1 - decay)
        accepted = count_accepted(logits.detach(), blocks.labels)[blocks.labels[..., 0] != NO_TOKEN].float()
        mean_loss = loss.item() / max(weight.item(), 1e-9)
        return {"loss": mean_loss, "tau": 1.0 + accepted.mean().item(), "norm": norm}

    @torch.no_grad()
    def measure(self, source: BlockSource, count: int) -> dict[str, float]:
        """Return the tokens per verify step of the averaged weights on held-out answers, overall and by kind."""
        tokens, steps = defaultdict[str, int](int), defaultdict[str, int](int)
        for number in source.held_out[:count]:
            anchors = source.answer_anchors(int(number))
            blocks = source.batch([(number, anchors)], self._device)
            accepted = count_accepted(logits_of(self.average, self.frozen, blocks, self.sizes), blocks.labels)[0]
            for name in ("held_out", f"held_out_{KINDS[source.stored.index[number]['kind']]}"):
                tokens[name] += len(anchors)
                steps[name] += count_verify_steps(accepted)
        taus = {name: tokens[name] / steps[name] for name in tokens}
        self.tau = taus.get("held_out", 0.0)
        return taus

    def _log_measurement(self, source: BlockSource, reporter: Reporter) -> None:
        values = self.measure(source, self.schedule.measured)
        self._log(values)
        draw_drafter_training(self.log, self.folder / "training.png")
        summary = f"{_numbers(values)} tokens per verify step" if values else "no held-out answers"
        reporter.say(f"step {self.step}  {summary}")

    def state(self) -> State:
        """See `ResumableRun`."""
        return {
            "schedule": asdict(self.schedule),
            "sizes": self.sizes,
            "slots": self._slots,
            "model": self.drafter.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def restore(self, state: State) -> None:
        """See `ResumableRun`."""
        self.drafter.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.sizes = state["sizes"].to(self._device)
        if state["slots"] != self._slots:
            raise TrainingError(f"{self.checkpoint}: trained for other slots; use its --block-size and --first-slot")


def product_type(device: str) -> torch.dtype:
    """Return the type of matrix products: bfloat16 on a GPU, and on a CPU with units for it, else float32."""
    has_units = device != "cpu" or any(map(torch.cpu.get_capabilities().get, ("avx512_bf16", "amx_bf16")))
    return torch.bfloat16 if has_units else torch.float32


def autocast_on(device: str) -> torch.autocast:
    """Return a context in which matrix products run in `product_type`; weights and sums stay float32."""
    dtype = product_type(device)
    return torch.autocast(device, dtype, enabled=dtype != torch.float32)


def _numbers(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in values.items())


def build_optimizers(drafter: DFlash, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices, AdamW for the norms and `fc`, whose orthogonal update would be too slow."""
    named = list(drafter.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and name != "fc.weight"]
    groups = [
        {"params": [p for _, p in named if p.ndim != 2], "share": 1.0},
        {"params": [drafter.fc.weight], "share": FUSE_SHARE},
    ]
    return [
        Muon(matrices, learning_rate, dtype=product_type(drafter.fc.weight.device.type)),
        torch.optim.AdamW(groups, learning_rate, (0.9, 0.95), weight_decay=0.0),
    ]


def serving_drafter(run: StoredAnswersRun) -> DFlash:
    """Return the averaged drafter for serving, which reads unscaled features."""
    drafter = copy.deepcopy(run.average)
    with torch.no_grad():
        drafter.fc.weight.div_(run.sizes)
    return drafter.cpu().eval()


def export_drafter(run: StoredAnswersRun, run_folder: Path, target: Path, folder: Path, target_layers: int) -> None:
    """Write the averaged weights into `folder`, as drafter.gguf (Q8_0) and drafter.safetensors with config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    drafter, header = serving_drafter(run), read_header(target)
    ids = short_vocabulary.load(run_folder / short_vocabulary.FILE, drafter.config.decoder.vocab_size).tolist()
    name = f"drafter for {target.stem}"
    write_drafter_for(folder / "drafter.gguf", drafter, header, "Q8_0", name, ids, run.tau)
    write_drafter_safetensors(folder / "drafter.safetensors", drafter, target_layers, our_fields(header, ids, run.tau))
