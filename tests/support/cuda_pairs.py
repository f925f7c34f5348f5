"""Pairs of the CUDA engine on a CPU: with the references, or with the kernels in Triton's interpreter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import REFERENCES, Ops
from localdflash.engine.generate import Request, generate
from localdflash.engine.pair import Pair
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.load_options import Options

CPU = torch.device("cpu")


def load_on_cpu(target: Path, drafter: Path | None = None, ops: Ops = REFERENCES, **settings: Any) -> CudaPair:
    """Load a pair without timing its step modes."""
    with patch("localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0)):
        return load_pair(target, drafter, CPU, Options(**settings), ops)


def answer(
    pair: Pair, ids: Sequence[int], count: int, params: SamplingParams | None = None, **fields: Any
) -> list[int]:
    """Return the tokens that follow a prompt, which is computed from its start."""
    pair.forget()
    request = Request(ids, count, params or SamplingParams(), **fields)
    return [token for step in generate(pair, request) for token in step.tokens]
