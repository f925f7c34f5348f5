"""From files to a target and its drafter on the CPU engine."""

from collections.abc import Callable
from pathlib import Path

from localdflash.cpu.drafter import CpuDFlashDrafter
from localdflash.cpu.packed import open_drafter, open_target
from localdflash.cpu.target import CpuTarget
from localdflash.cpu.team import Team
from localdflash.machine.cores import physical_cores
from localdflash.model.dflash_config import check_fit

Progress = Callable[[int, int], None]  # bytes done, bytes in all


def load(
    target: Path, drafter: Path | None, context: int = 0, threads: int = 0, progress: Progress | None = None
) -> tuple[CpuTarget, list[CpuDFlashDrafter]]:
    """A target and, if a file is given, its drafter; `CpuTarget.close` frees both. Zeros: the model's, the cores'."""
    cores = physical_cores()
    packed = open_target(target, progress)
    fitting = open_drafter(drafter) if drafter else None
    if fitting:
        c = packed.config
        check_fit(fitting.config, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(drafter))
    team = Team(threads or len(cores), cores)
    try:
        loaded = CpuTarget(packed, team, context, fitting.config.taps if fitting else ())
        return loaded, [CpuDFlashDrafter(fitting, loaded)] if fitting else []
    except BaseException:
        team.close()
        raise
