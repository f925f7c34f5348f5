"""Child process of the CUDA engine's check: errors are one-line reports; a complete check on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.base.errors import DeviceError, OutOfMemory
from localdflash.loading import child, proof
from localdflash.loading.proof import Subject, read_verdict
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from tests.support import checked_child
from tests.support.pretended_gpu import STAGES, pretend, running

pytestmark = pytest.mark.checks_gpu
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)


ILLEGAL = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with")
BROKEN: list[tuple[Exception, str]] = [
    (ILLEGAL, "unsound"),
    (DeviceError("the GPU failed"), "unsound"),
    (OutOfResources(120_000, 101_376, "shared memory"), "unsound"),
    (CompilationError("def kernel(): pass", None, "type fp8e4nv not supported"), "unsound"),
    (torch.OutOfMemoryError("CUDA out of memory"), "undecided"),
    (ImportError("libcudart.so.13: cannot open shared object file"), "undecided"),
    (OSError("No space left on device"), "undecided"),
    (OutOfMemory("3 GB are needed"), "undecided"),
]


@pytest.fixture
def reports(options: Options, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the list of the child's reports; the child runs in this process."""
    lines = list[dict[str, Any]]()
    monkeypatch.setattr(child, "begin", lambda: (options, lambda **fields: lines.append(fields)))
    return lines


@pytest.mark.parametrize(
    ("error", "kind", "stage"),
    [*((error, kind, "loading") for error, kind in BROKEN), *((ILLEGAL, "unsound", stage) for stage in STAGES[1::2])],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_error_in_the_child_is_a_one_line_report(
    error: Exception, kind: str, stage: str, reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise error

    def stages(*_: Any) -> Any:
        yield from ((name, broken if name == stage else lambda: None) for name in STAGES[1:])

    pair = object.__new__(CudaPair)
    pair.stepper = SimpleNamespace(device=torch.device("cpu"))  # type: ignore[assignment]
    loaded = replace(running(), pair=pair)
    monkeypatch.setattr(proof, "_load_for_checks", broken if stage == "loading" else lambda *_: loaded)
    monkeypatch.setattr(proof, "_prompt", lambda *_: [1])
    monkeypatch.setattr("localdflash.backends.cuda.proof.stages.stages", stages)
    proof.main()
    last = reports[-1]
    assert (last["kind"], last["operation"]) == (kind, stage)
    assert "\n" not in last["reason"]
    assert "def kernel" not in last["reason"]
    assert [line["at"] for line in reports[:-1]] == list(STAGES[1 : STAGES.index(stage) + 1])


def test_checks_run_on_the_gpu_of_the_pair(reports: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton, streams and graphs use the thread's current GPU, by default the first."""
    pair, current, seen = object.__new__(CudaPair), [torch.device("cuda", 0)], list[torch.device]()
    second = torch.device("cuda", 1)
    pair.stepper = SimpleNamespace(device=second)  # type: ignore[assignment]

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    loaded = replace(running(), pair=pair)
    monkeypatch.setattr(proof, "_load_for_checks", lambda *_: loaded)
    monkeypatch.setattr(proof, "_prompt", lambda *_: [1])
    monkeypatch.setattr("localdflash.backends.cuda.device.device_context", on)
    monkeypatch.setattr("localdflash.backends.cuda.proof.costs.costs", lambda *_: [])
    checks = [("operations", lambda: seen.append(current[-1]))]
    monkeypatch.setattr("localdflash.backends.cuda.proof.stages.stages", lambda *_: checks)
    proof.main()
    assert reports[-1]["kind"] == "sound"
    assert seen == [second]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("wrong", "choices", "line"),
    [
        ("", "", ""),
        ("attention", "attention:reference", "attention of layer 0: sums differs from the reference's: off by "),
    ],
)
def test_a_complete_check_on_the_cpu(
    wrong: str, choices: str, line: str, files: LocalPair, options: Options, subject: Subject,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Runs in a child process, with a real file and every stage."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(proof, "PROGRAM", checked_child.PROGRAM % wrong)
    found = proof.check(subject, files, options)
    assert found
    assert (found.state, found.choices) == ("sound", choices), found
    assert "".join(found.degraded[:1]).startswith(line)
    assert len(found.degraded) == (3 if wrong else 0)  # both forms that failed, and what the last one costs
    assert read_verdict(subject.path) == found
