"""Operations in simpler forms: the fallback after a fault, and unchanged text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.backends.cuda.choices import OPERATIONS, VARIABLE, Choices
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import MODULES, REFERENCES, Op, Ops
from localdflash.backends.cuda.proof import calls, stages
from localdflash.backends.cuda.proof.costs import costs
from localdflash.backends.cuda.proof.operations import CheckError, wrap_ops
from localdflash.base.errors import UsageError
from localdflash.kernels.cuda import launch, matmul
from tests.support.cuda_pairs import answer, load_on_cpu
from tests.support.tiny_models import SHAPE, write_drafter, write_target

IDS = [(7 * i + i // 9) % 150 for i in range(75)]
USED = ("embed", "qkv", "attention", "residual", "swiglu", "head", "sample", "gather_taps", "accept", "lookup", "dense")


def test_every_operation_can_be_chosen() -> None:
    assert sorted(OPERATIONS) == sorted(MODULES)


@pytest.mark.parametrize(
    ("text", "failed", "fallback"),
    [
        ("", "attention of layer 3", "attention:simple"),
        ("attention:simple", "loading, attention", "attention:reference"),
        ("attention:reference", "attention of layer 0", None),
        ("qkv:simple", "head of output", "head:simple,qkv:simple"),
        ("", "the graph of lookup", "graph:off"),
        ("", "texts", "graph:off"),
        ("", "a block of the prompt", "blocks:off"),
        ("", "loading, prompt_attention", "blocks:off"),
        ("graph:off", "rows", ",".join(f"{name}:simple" for name in sorted(OPERATIONS)) + ",graph:off"),
    ],
)
def test_fallback_order(text: str, failed: str, fallback: str | None) -> None:
    lower = Choices.parse(text).fallback(failed)
    assert (None if lower is None else str(lower)) == fallback
    assert lower is None or Choices.parse(str(lower)) == lower


@pytest.mark.parametrize("text", ["attention", "attention:fast", "graph:simple", "softmax:simple"])
def test_unknown_entries_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"{VARIABLE}: .*{text}.* .*attention, .*graph"):
        Choices.parse(text)


def test_the_simplest_launches_are_not_split() -> None:
    device = torch.device("cpu")
    assert matmul.plan(256, 4096, device).SPLIT_K > 1
    with launch.simplest():
        plan = matmul.plan(256, 4096, device)
    assert (plan.SPLIT_K, plan.STAGES) == (1, 1)
    assert matmul.plan(256, 4096, device).SPLIT_K > 1


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.prompt_reader.BLOCK_TOKENS", (48,))


def wrong(op: Op, arguments: dict[str, Any]) -> None:
    """Change the numbers or ids of a result."""
    op(**arguments)
    for name, tensor in calls.writable_tensors(arguments).items():
        if name in ("x", "q_out", "out", "choice", "draft", "a", "tokens"):
            tensor.add_(1)


def broken(_op: Op, _arguments: dict[str, Any]) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


# Two cases in every test run, all of them at night. `qkv` reads a matrix, and in blocks a finished product.
IN_EVERY_RUN = [("attention", wrong), ("qkv", broken)]
FAULTS = [
    pytest.param(name, fault, marks=() if (name, fault) in IN_EVERY_RUN else pytest.mark.nightly)
    for name in USED
    for fault in (wrong, broken)
]


def sound(target: Path, drafter: Path, ops: Ops) -> tuple[CudaPair, Choices]:
    """Load the pair in forms that pass the checks; return their choices."""
    choices: Choices | None = Choices()
    while choices is not None:
        stage = name = "loading"
        try:
            pair = load_on_cpu(target, drafter, ops, context=256, cuda_ops=str(choices))
            for stage, check in stages.stages(pair, IDS[:40], lambda _: None):
                if stage in ("operations", "blocks"):
                    check()
            return pair, choices
        except CheckError as error:
            name = error.operation
        except RuntimeError:  # how the child reports an error without a known operation
            name = stage
        choices = choices.fallback(name)
    raise AssertionError("nothing is left to try")


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_in_an_operation_does_not_change_the_text(
    name: str, fault: Callable[[Op, dict[str, Any]], None], files: tuple[Path, Path]
) -> None:
    def spoilt(other: str, op: Op) -> Op:
        if other != name:
            return op
        return lambda *given, **named: fault(op, calls.bind_arguments(getattr(REFERENCES, name), given, named))

    pair, choices = sound(*files, wrap_ops(REFERENCES, spoilt))
    assert choices.forms.get(name) == "reference" or (name == "dense" and not choices.is_on("blocks"))
    expected = answer(load_on_cpu(*files, context=256), IDS, 24)
    assert answer(pair.with_mode("block"), IDS, 24) == expected
    lines = [*costs(pair, choices)]
    assert all(line.startswith(f"{name} as reference: ") for line in lines)
