"""Errors at each stage of loading on the CUDA engine: `auto` continues on another backend with a one-line notice, and
`--backend cuda` fails with a one-line error and its exit code.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from localdflash.backends.cuda import cuda_sizes
from localdflash.backends.cuda import device as devices
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.base.errors import DeviceError, LocaldflashError, ModelError, NoDevice, OutOfMemory
from localdflash.loading import automatic, backends
from localdflash.loading.engine_choice import HostChoice
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.running_pair import Running
from tests.support.cards import Card, CardGpu, in_this_machine
from tests.support.pretended_gpu import running

STAGES = {
    "finding the GPU": "localdflash.backends.cuda.device.find_gpus",
    "reading the headers": "localdflash.backends.cuda.load_cuda.CudaSizes",
    "measuring memory": "localdflash.backends.cuda.load_cuda.budget_of",
    "reading the files": "localdflash.backends.cuda.assembly.gguf.read_header",
    "repacking weights": "localdflash.backends.cuda.assembly.load_target",
    "the drafter's weights": "localdflash.backends.cuda.assembly.load_drafter",
    "buffers": "localdflash.backends.cuda.assembly.Stepper",
    "compiling and capturing": "localdflash.backends.cuda.runner.Runner.prepare",
    "timing": "localdflash.backends.cuda.assembly.measure",
}
BROKEN: list[tuple[BaseException, type[LocaldflashError]]] = [
    (RuntimeError("Failed to find C compiler. Please specify via CC environment variable"), NoDevice),
    (RuntimeError("CUDA error: invalid argument\nCompile with TORCH_USE_CUDA_DSA"), NoDevice),
    (OutOfResources(120_000, 101_376, "shared memory"), NoDevice),
    (CompilationError("def kernel(): pass", None, "type fp8e4nv not supported"), NoDevice),
    (OSError(28, "No space left on device"), NoDevice),
    (AssertionError("libcuda.so cannot found!\nPossible files are located at"), NoDevice),
    (MemoryError(), NoDevice),
    (ModelError("a type that it does not run"), ModelError),
]
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
Load = Callable[[], tuple[Runner, str]]
Break = Callable[[str, BaseException], None]


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend a GPU whose memory is this process's, with reference implementations as kernels."""
    monkeypatch.setattr("localdflash.backends.cuda.device.find_gpus", lambda _name: [CardGpu(0)])
    monkeypatch.setattr(
        "localdflash.backends.cuda.load_cuda.budget_of", lambda _device: MemoryBudget(4 << 30, 0, "GPU memory")
    )
    monkeypatch.setattr(
        "localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0)
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(devices, "gc", SimpleNamespace(collect=lambda: 0))  # takes a while in a process of tests
    monkeypatch.setattr(devices, "driver_present", lambda: True)
    monkeypatch.setattr(backends, "missing_tools", lambda: "")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr("localdflash.backends.cuda.load_cuda.KERNELS", REFERENCES)
    monkeypatch.setattr("localdflash.backends.cuda.load_cuda.load.__defaults__", (REFERENCES,))


@pytest.fixture
def options(tiny_pair: Path) -> Options:
    return Options(
        str(tiny_pair / "target.gguf"), "auto", drafter=str(tiny_pair / "drafter.gguf"), threads=1, context=64
    )


@pytest.fixture
def load(options: Options, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that loads with `auto`; other backends than the CUDA engine are faked."""

    def load_on(backend: Runner, files: LocalPair, given: Options) -> Running:
        return backends.load_on(backend, files, given) if backend == "cuda" else running()

    monkeypatch.setattr(automatic, "load_on", load_on)
    monkeypatch.setattr(automatic, "gpu_is_there", lambda: False)
    monkeypatch.setattr(automatic, "choose_engine", lambda *_: HostChoice("cpu", "a test"))
    files = local_files(load_registry().resolve(options.pair, options.drafter))

    def load() -> tuple[Runner, str]:
        backend, loaded = automatic.load_best(files, options)
        return backend, "; ".join(filter(None, loaded.notices))

    return load


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Make a stage raise."""

    def breaks(stage: str, error: BaseException) -> None:
        def broken(*_arguments: Any, **_options: Any) -> Any:
            raise error

        monkeypatch.setattr(STAGES[stage], broken)

    return breaks


def load_on_cuda(options: Options) -> None:
    LoadedPair(replace(options, backend="cuda"))


@pytest.mark.parametrize(
    ("error", "kind", "stage"),
    [*((error, kind, "timing") for error, kind in BROKEN), *((*BROKEN[2], stage) for stage in list(STAGES)[::2])],
    ids=lambda value: getattr(value, "__name__", str(value)[:20]),
)
def test_auto_continues_on_another_backend_with_one_line(
    error: BaseException, kind: type[LocaldflashError], stage: str, load: Load, breaks: Break
) -> None:
    breaks(stage, error)
    backend, notice = load()
    assert backend == "cpu"
    assert (f"{type(error).__name__}: " if kind is NoDevice else "a type that it does not run") in notice
    assert notice.isprintable()
    assert "def kernel" not in notice


@pytest.mark.parametrize(("error", "kind"), [BROKEN[1], BROKEN[-1]])
def test_a_requested_backend_fails_with_one_line_and_the_exit_code(
    error: BaseException, kind: type[LocaldflashError], breaks: Break, options: Options
) -> None:
    for stage in ("finding the GPU", "repacking weights", "timing"):
        breaks(stage, error)
        with pytest.raises(kind) as caught:
            load_on_cuda(options)
        assert caught.value.exit_code == kind.exit_code
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("stage", ["repacking weights", "timing"])
def test_a_full_gpu_falls_back_or_raises_out_of_memory(stage: str, load: Load, breaks: Break, options: Options) -> None:
    breaks(stage, FULL)
    backend, notice = load()
    assert (backend, "a context of 64 tokens needs " in notice) == ("cpu", True)
    assert notice.isprintable()
    with pytest.raises(OutOfMemory) as caught:
        load_on_cuda(options)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("stage", "backend"), [*((stage, "auto") for stage in list(STAGES)[::3]), ("timing", "cuda")])
def test_a_lost_gpu_raises_device_error(
    backend: Any, stage: str, load: Load, breaks: Break, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with")

    def lost(*_: Any) -> None:
        raise error

    breaks(stage, error)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(torch.cuda, "empty_cache", lost)
    with pytest.raises(DeviceError) as caught:
        load() if backend == "auto" else load_on_cuda(options)
    assert caught.value.exit_code == 5
    assert str(caught.value).isprintable()


def test_repeated_loads_and_failures_leak_no_memory(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    files, free = local_files(load_registry().resolve(options.pair, options.drafter)), list[int]()
    monkeypatch.setattr("localdflash.backends.cuda.load_cuda.budget_of", cuda_sizes.budget_of)
    monkeypatch.setattr(devices, "gc", gc)
    with in_this_machine(Card(4 << 30), 1 << 20):
        for _ in range(3):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(STAGES["timing"], lambda *_: dict[str, int]()["nothing"])
                with pytest.raises(NoDevice):
                    backends.load_on("cuda", files, options)
            backends.load_on("cuda", files, options).close()
            free.append(torch.cuda.mem_get_info("cpu")[0])
    assert len(set(free)) == 1
