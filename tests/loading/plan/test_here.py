"""A pair on this machine: its backend, whether it fits, its highest speed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.base.errors import NoDevice
from localdflash.base.machine.measurements import Measurement
from localdflash.loading.plan.describe_pair import describe_pair
from localdflash.loading.plan.here import assess_pair, bytes_per_token, quantization, tokens_per_second, why_not
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.models.registry.registry import load_registry
from localdflash.models.weights.gguf import read_header
from tests.support.random_models import Shape, write
from tests.support.tiny_models import SHAPE, write_target

MEASURED = Measurement(20.0, "made up", "2026-11-24")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """32 GB of memory at 20 GB/s, the CPU engine, no GPU; returns what changes it."""

    def change(name: str, value: object) -> None:
        monkeypatch.setattr(f"localdflash.loading.plan.here.{name}", lambda *_, **__: value)

    change("all_memory", 32 * 10**9)
    change("device.driver_present", False)
    change("gpu_is_there", False)
    change("cpu_library.why_unavailable", "")
    monkeypatch.setattr(
        "localdflash.loading.plan.here.measurements.bandwidth",
        lambda on_gpu=False: replace(MEASURED, value=200.0) if on_gpu else MEASURED,
    )
    return change


def entry(pair_id: str = "qwen3-8b") -> PairEntry:
    return load_registry().pair(pair_id)


def test_the_backend_of_a_pair(machine: Callable[..., None]) -> None:
    assert assess_pair(entry()).backend == "cpu"
    machine("cpu_library.why_unavailable", "no compiler")
    assert assess_pair(entry()).backend == "llama.cpp"
    nothing = assess_pair(replace(entry(), backends=("cpu",)))
    assert (nothing.backend, nothing.fits, nothing.tokens_per_second) == (None, False, None)
    machine("cpu_library.why_unavailable", "")
    machine("gpu_is_there", True)
    assert assess_pair(entry()).backend == "llama.cpp"


@pytest.mark.parametrize(("memory", "backend", "speed"), [(12e9, "cuda", 200), (9e9, "cpu", 20), (None, "cpu", 20)])
def test_the_cuda_engine_where_the_pair_fits_on_the_gpu(
    memory: float | None, backend: str, speed: float, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_gpu_memory() -> float:
        if memory is None:
            raise NoDevice("no GPU")
        return memory

    machine("device.driver_present", True)
    monkeypatch.setattr("localdflash.loading.plan.here.all_gpu_memory", all_gpu_memory)
    seen = assess_pair(entry())
    assert (seen.backend, seen.bandwidth) == (backend, replace(MEASURED, value=float(speed)))


def test_a_gpu_with_more_memory_than_the_machine(machine: Callable[..., None]) -> None:
    for name in ("device.driver_present", "gpu_is_there"):
        machine(name, True)
    pair = replace(entry(), backends=("llama.cpp",), memory_gb=40.0)
    machine("all_gpu_memory", 24 * 10**9)
    assert why_not(pair) == "needs 40.00 GB, this machine has 32.00 GB"
    machine("all_gpu_memory", 48 * 10**9)
    assert (why_not(pair), assess_pair(pair).fits) == ("", True)


def test_the_speed_is_bandwidth_over_the_bytes_that_a_token_reads(tiny_pair: Path) -> None:
    path = tiny_pair / "target.gguf"
    on_disk = replace(entry(), target=replace(entry().target, repository=None, file=str(path)))
    unsized = replace(entry(), target=replace(entry().target, size=None))
    odd = replace(unsized, target=replace(unsized.target, quantization="IQ2_XXS"))
    for pair, expected in (
        (entry("qwen3-8b"), 20e9 / (8.2e9 * 4.89 / 8)),
        (entry("qwen3-coder-30b-a3b"), 20e9 / (3.3e9 * 4.89 / 8)),  # its active experts
        (on_disk, 20e9 / bytes_per_token(read_header(path))),
        (odd, None),
        (replace(unsized, active=None), None),
        (replace(entry(), active=None), 20e9 / 5027783488),  # the whole file
    ):
        assert assess_pair(pair).tokens_per_second == (expected and pytest.approx(expected))


EMBEDDED = Path(__file__).parents[3] / "localdflash" / "models" / "embedded" / "target.gguf"


def test_bytes_that_a_token_reads(tmp_path: Path) -> None:
    header = read_header(EMBEDDED)
    table = header.tensors["token_embd.weight"]  # tied: it is the head, and is read
    everything = sum(info.nbytes for info in header.tensors.values())
    assert bytes_per_token(header) == everything
    untied = replace(header, tensors={**header.tensors, "output.weight": replace(table, name="output.weight")})
    assert bytes_per_token(untied) == everything
    header = read_header(write(tmp_path / "moe.gguf", Shape("Q8_0", 64, 2, 2, 1, 32, 512, 32, experts=16, used=4)))
    experts = 2 * 3 * 16 * 64 * 32 * 34 // 32
    everything = sum(info.nbytes for info in header.tensors.values())
    assert bytes_per_token(header) == everything - experts + experts // 4
    assert tokens_per_second(936, 4_680_000_000) == pytest.approx(200)


def test_the_quantization_of_a_file(tmp_path: Path) -> None:
    for kind in ("Q8_0", "Q4_0"):  # by the type of most of its bytes
        path = write(tmp_path / f"{kind}.gguf", Shape(kind, 64, 1, 2, 1, 64, 512, 32))
        assert quantization(read_header(path)) == kind
    header = read_header(EMBEDDED)
    for code, name in ((0, "F32"), (15, "Q4_K_M")):
        named = replace(header, metadata={**header.metadata, "general.file_type": code})
        assert quantization(named) == name


@pytest.mark.usefixtures("cpu_engine")
def test_files_at_a_path_are_described_by_their_headers(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.loading.plan.describe_pair.driver_present", lambda: True)
    pair = describe_pair(load_registry().resolve(str(tiny_pair / "target.gguf")))
    assert (pair.architecture, pair.layers, pair.context) == ("qwen3", 6, 1024)
    assert pair.target.quantization == "Q8_0"
    assert pair.backends == ("llama.cpp", "cpu", "torch", "cuda")
    assert pair.drafter
    assert (pair.drafter.block_size, pair.drafter.taps) == (8, (1, 3, 4))


def test_what_our_engines_cannot_run_is_llama_cpps(tmp_path: Path) -> None:
    file = write_target(tmp_path / "target.gguf", SHAPE)
    file.write_bytes(file.read_bytes().replace(b"qwen3", b"gemma"))
    pair = describe_pair(load_registry().resolve(str(file)))
    assert (pair.architecture, pair.layers, pair.backends) == ("gemma", SHAPE.num_hidden_layers, ("llama.cpp",))


@pytest.mark.parametrize(
    ("content", "problem"), [(b"GGUF", "broken GGUF file: the version"), (b"no model", "not a GGUF file")]
)
def test_an_unreadable_file_adds_only_a_note_to_the_entry(content: bytes, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "target.gguf"
    file.write_bytes(content)
    pair = load_registry().resolve(str(file))
    (note,) = describe_pair(pair).notes
    assert note.startswith(f"{file}: {problem}")
    assert describe_pair(pair) == replace(pair, notes=(note,))
