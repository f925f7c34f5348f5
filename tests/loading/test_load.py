"""Each backend loads what it needs, and what fits."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from localdflash.backends.llamacpp import certified
from localdflash.backends.llamacpp.certified import FileMeasurement, MeasuredMode
from localdflash.backends.llamacpp.decode_flags import NOT_REPACKED, DecodeMode
from localdflash.base.errors import NoDevice, OutOfMemory, UsageError
from localdflash.base.machine import cores
from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Backend, Runner
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.parts import DRAFTER, PROGRAM, total
from localdflash.models.weights.gguf import read_header
from tests.support.cards import CardGpu
from tests.support.split_files import split_file

LOAD = (
    "from localdflash.models.load_options import Options; from localdflash.loading.load_pair import LoadedPair;"
    "LoadedPair(Options('embedded', '{}')).close()"
)
RUN = "import sys; {body}; print(sorted(m for m in ('torch', 'llama_cpp') if m in sys.modules))"


@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize(("body", "loaded"), [(LOAD.format("llama.cpp"), "['llama_cpp']"), (LOAD.format("cpu"), "[]")])
def test_a_backend_does_not_import_other_backends_libraries(body: str, loaded: str) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", RUN.format(body=body)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == loaded


def with_free(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free, "system_budget", lambda: MemoryBudget(count, 0, "memory"))


def tokens_of(loaded: LoadedPair) -> list[int]:
    return [token for step in generate(loaded.pair, Request([5, 6, 7], 16)) for token in step.tokens]


@pytest.fixture(params=["llama.cpp", "cpu"])
def options(request: pytest.FixtureRequest) -> Options:
    """Return options of the embedded pair on each CPU backend."""
    if request.param == "cpu":
        request.getfixturevalue("cpu_engine")
    return Options(threads=1, backend=request.param)


@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize("backend", ["cpu", "llama.cpp", "torch"])
def test_no_more_threads_run_than_the_machine_has_cores(
    backend: Backend, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "core_count", lambda: 1)
    with LoadedPair(Options(str(tiny_pair / "target.gguf"), backend, threads=3)) as loaded:
        assert "1 of 3 threads are used: one per core" in loaded.notice


def needed(options: Options) -> int:
    """Return the bytes of the pair, without the program."""
    with LoadedPair(options) as loaded:
        return total(loaded.predicted_memory) - loaded.predicted_memory[PROGRAM]


def test_the_drafter_is_dropped_before_the_context_is_cut(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    everything, target = needed(options), needed(replace(options, draft=False))
    with LoadedPair(options) as loaded:
        drafted = tokens_of(loaded)
    with_free(everything - 1, monkeypatch)
    with LoadedPair(options) as loaded:
        assert "the drafter was left out" in loaded.notice
        assert "\n" not in loaded.notice
        assert (loaded.context, DRAFTER in loaded.predicted_memory, DRAFTER in loaded.memory()) == (1024, False, False)
        assert tokens_of(loaded) == drafted
    with_free(target - 1, monkeypatch)
    with LoadedPair(options) as loaded:
        assert "768 of 1024 tokens" in loaded.notice


def test_a_requested_context_that_does_not_fit_is_refused_before_weights_are_loaded(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(needed(replace(options, draft=False)) - 1, monkeypatch)
    for name in ("llamacpp.load_llamacpp.LlamaCppTarget", "cpu.load_cpu.open_target"):
        monkeypatch.setattr(f"localdflash.backends.{name}", lambda *_: pytest.fail("weights were loaded"))
    with pytest.raises(OutOfMemory, match=r"a context of 1024 tokens needs .*--context 768 fits"):
        LoadedPair(replace(options, context=1024))
    with pytest.raises(UsageError, match="expected 8 to 1024"):
        LoadedPair(replace(options, context=100_000))


def test_llama_cpp_runs_the_pair_if_the_cpu_engine_was_not_built(
    without_cpu_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
    with pytest.raises(NoDevice) as caught:
        LoadedPair(Options(backend="cpu", threads=1))
    assert without_cpu_engine in str(caught.value)
    assert "install a C++ compiler" in without_cpu_engine
    with LoadedPair(Options(threads=1)) as loaded:
        assert (loaded.backend, loaded.notice) == ("llama.cpp", "")


def test_each_form_of_a_drafter_on_a_gpu_has_its_own_identity(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localdflash.backends.cuda import device, load_cuda
    from localdflash.backends.cuda.cuda_sizes import CudaSizes

    target = SimpleNamespace(config=SimpleNamespace(vocab_size=64))
    pair = SimpleNamespace(stepper=SimpleNamespace(context=1024, drafter=None, target=target), close=lambda: None)
    monkeypatch.setattr(device, "driver_present", lambda: True)
    monkeypatch.setattr(device, "find_gpus", lambda _name: [CardGpu(0)])
    monkeypatch.setattr(load_cuda, "load_pair", lambda *_, **__: pair)
    sizes = CudaSizes(tiny_pair / "target.gguf", tiny_pair / "drafter.safetensors")
    identities = set()
    for holds in ("8 bits", "4 bits", "none"):
        room = MemoryBudget(total(sizes.parts(512, holds)), 0, "GPU memory")
        monkeypatch.setattr(load_cuda, "budget_of", lambda _device, room=room: room)
        with LoadedPair(Options(str(tiny_pair / "target.gguf"), "cuda", context=512)) as loaded:
            identities.add(loaded.identity())
    assert len(identities) == 3


def test_too_expensive_widths_are_not_used_and_a_notice_reports_it(
    tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = FileMeasurement(1.0, (MeasuredMode(DecodeMode(NOT_REPACKED, (2, 4, 8)), {2: 1.5, 8: 2.0}),))
    monkeypatch.setattr(certified, "measure", lambda *_: dear)
    options = Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1, context=256)
    with LoadedPair(options) as loaded:
        assert "may differ" in loaded.notice
        assert loaded.notice.endswith(loaded.width_status)
    for rows in ("exact", "fast"):
        with LoadedPair(replace(options, rows=rows)) as loaded:
            assert (loaded.width_status.startswith(rows), loaded.notice) == (True, "")


@pytest.mark.parametrize(
    ("backend", "device", "remedy"),
    [("cuda", "cpu", "cpu"), ("cpu", "gpu", "cuda"), ("torch", "0", "cuda")],
)
def test_a_backend_without_the_device_names_others_that_have_it(
    backend: Backend, device: str, remedy: str, tiny_pair: Path
) -> None:
    message = f"--device {device}: not available with --backend {backend}; use {remedy} or llama.cpp"
    with pytest.raises(UsageError, match=re.escape(message)):
        LoadedPair(Options(str(tiny_pair / "target.gguf"), backend, device=device))


BACKENDS: tuple[Runner, ...] = ("cpu", "llama.cpp", "torch")
PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


def written(path: Path, backend: Runner) -> tuple[list[int], bool]:
    """Return greedy tokens, and whether the pair has a drafter."""
    options = Options(str(path), backend, context=128, threads=1, rows="fast")
    with LoadedPair(options) as loaded:
        tokens = [token for step in generate(loaded.pair, Request(PROMPT, 16)) for token in step.tokens]
        return tokens, bool(loaded.files.drafter_safetensors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_reads_all_parts(backend: Runner, tiny_pair: Path, tmp_path: Path) -> None:
    first = split_file(tiny_pair / "target.gguf", tmp_path, "target", 3, empty_first=True)
    for name in ("drafter.safetensors", "config.json"):
        shutil.copy(tiny_pair / name, tmp_path / name)
    assert written(first, backend) == (written(tiny_pair / "target.gguf", backend)[0], True)


def test_a_change_of_any_part_invalidates_packed_weights(tiny_pair: Path, tmp_path: Path) -> None:
    first = split_file(tiny_pair / "target.gguf", tmp_path, "m", 2)
    part = first.with_name("m-00002-of-00002.gguf")  # the path of any part stands for the model
    before = written(part, "cpu")[0]
    assert before == written(tiny_pair / "target.gguf", "cpu")[0]
    data = bytearray(part.read_bytes())
    info = next(info for info in read_header(first).tensors.values() if info.part == 1 and len(info.shape) == 2)
    there, block = slice(info.offset, info.offset + info.nbytes), info.ggml_type.block_bytes
    data[there] = data[there][block:] + data[there][:block]  # each block in its neighbour's place
    part.write_bytes(data)
    assert written(first, "cpu")[0] != before


@pytest.mark.parametrize(("kv", "backend"), [("int8", "torch"), ("fp8", "cpu"), ("fp8", "llama.cpp")])
def test_ignored_kv_cache_type_is_reported(kv: str, backend: Runner, tiny_pair: Path) -> None:
    options = Options(str(tiny_pair / "target.gguf"), backend, threads=1, context=64, device="cpu", kv=kv)
    with LoadedPair(options) as pair:
        assert f"--kv {kv}: ignored by {backend} (only for --backend cuda" in pair.notice
    with LoadedPair(replace(options, kv="auto")) as pair:
        assert "--kv" not in pair.notice
