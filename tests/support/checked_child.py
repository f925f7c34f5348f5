"""Child process of the CUDA engine's check, without a GPU: with the reference operations in place of the kernels.

As a program it takes the options, and the name of a faulty operation, or "".
"""

from typing import Any
from unittest.mock import patch

import torch

from localdflash.backends.cuda import ops
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.cuda.proof import stages
from localdflash.backends.cuda.proof.calls import bind_arguments
from localdflash.backends.cuda.proof.operations import wrap_ops
from localdflash.loading import proof
from localdflash.models.memory.fit import MemoryBudget
from tests.support.cards import CardGpu

SMALL: dict[str, Any] = {"TEXT_TOKENS": 6, "SAMPLED_TOKENS": 3, "REPLAYED_STEPS": 2}
PROGRAM = "from tests.support.checked_child import main; main(%r)"


def main(wrong: str) -> None:
    """Check a pair, with a fault in the operation `wrong` if it is not ""."""

    def wrap(name: str, op: Any) -> Any:
        def run(*given: Any, **named: Any) -> None:
            op(*given, **named)
            bind_arguments(getattr(REFERENCES, name), given, named)["sums"].view(-1)[3] += 1

        return run if name == wrong else op

    with (
        patch("localdflash.backends.cuda.device.find_gpus", lambda _name: [CardGpu(0)]),
        patch("localdflash.backends.cuda.load_cuda.budget_of", lambda _device: MemoryBudget(1 << 40, 0, "memory")),
        patch("localdflash.backends.cuda.assembly.check_heads", lambda *_: None),
        patch("localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, modes: dict.fromkeys(modes, 1.0)),
        patch("localdflash.backends.cuda.load_cuda.free_unused_memory", lambda: None),
        patch.object(ops, "KERNELS", wrap_ops(REFERENCES, wrap)),
        patch.multiple(stages, **SMALL),
    ):
        torch.set_num_threads(1)
        proof.main()
