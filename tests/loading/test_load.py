"""Each backend loads what it needs and no more, and what fits; identity holds across them by other tests."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.backends.llamacpp import certified
from localdflash.backends.llamacpp import llama_target as llamacpp
from localdflash.backends.llamacpp.certified import FileMeasurement, MeasuredMode
from localdflash.backends.llamacpp.decode_flags import DEFAULT, NOT_REPACKED, DecodeMode
from localdflash.base.errors import ModelError, NoDevice, OutOfMemory, UsageError
from localdflash.engine.controller import Controller
from localdflash.engine.generate import Request, generate
from localdflash.engine.pair import Drafter, Target
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.parts import DRAFTER, PROGRAM, SCRATCH, total
from localdflash.models.weights import gguf
from tests.support.cards import CardGpu
from tests.support.split_files import split_file

IMPORTS = "from localdflash.models.load_options import Options; from localdflash.loading.load_pair import LoadedPair"
RUN = "import sys; {body}; print(sorted(m for m in ('torch', 'llama_cpp') if m in sys.modules))"


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        (
            f"{IMPORTS}; LoadedPair(Options('embedded', 'llama.cpp')).close()",
            "['llama_cpp']",
        ),
        (
            "import localdflash.backends.reference.reference_target, localdflash.backends.reference.dflash_files",
            "['torch']",
        ),
        ("import localdflash.cli, localdflash.models.registry.registry, localdflash.engine.generate", "[]"),
    ],
)
def test_a_backend_does_not_load_the_other(body: str, loaded: str) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", RUN.format(body=body)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == loaded


def test_how_the_makers_would_draw_is_read_from_the_file(tiny_pair: Path, tmp_path: Path) -> None:
    said = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    file = split_file(tiny_pair / "target.gguf", tmp_path, "made", 2, more=said)
    with LoadedPair(Options(str(file), "llama.cpp", threads=1)) as loaded:
        assert loaded.sampling == {"temperature": 0.5, "top_k": 20}
    with LoadedPair(Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1)) as loaded:
        assert loaded.sampling == {}


def with_free(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free, "system_budget", lambda: MemoryBudget(count, 0, "memory"))


def needed(drafter: bool = True) -> int:
    """Bytes that the embedded pair takes beside the program."""
    with LoadedPair(Options(threads=1, draft=drafter, backend="llama.cpp")) as loaded:
        return total(loaded.predicted) - loaded.predicted[PROGRAM]


def test_what_was_planned_is_what_is_there() -> None:
    with LoadedPair(Options(threads=1, backend="llama.cpp")) as loaded:
        planned, measured = loaded.predicted, loaded.memory()
    assert loaded.notice == ""
    assert planned.keys() == measured.keys()
    for name in planned.keys() - {PROGRAM, SCRATCH}:
        assert measured[name] == pytest.approx(planned[name], abs=1e4), name


def test_the_drafter_goes_before_the_context_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = needed()
    with_free(everything - 1, monkeypatch)
    with LoadedPair(Options(threads=1, backend="llama.cpp")) as loaded:
        assert "the drafter was left out" in loaded.notice
        assert "\n" not in loaded.notice
        assert loaded.context == 1024
        assert DRAFTER not in loaded.predicted
        assert DRAFTER not in loaded.memory()
        plain = [token for step in generate(loaded.pair, Request([5, 6, 7], 16)) for token in step.tokens]
    with_free(everything, monkeypatch)
    with LoadedPair(Options(threads=1, backend="llama.cpp")) as loaded:
        assert loaded.notice == ""
        assert plain == [token for step in generate(loaded.pair, Request([5, 6, 7], 16)) for token in step.tokens]


def test_a_context_that_was_asked_for_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(needed(drafter=False) - 1, monkeypatch)

    def loads(*_: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("localdflash.backends.llamacpp.load_llamacpp.LlamaCppTarget", loads)
    with pytest.raises(OutOfMemory, match=r"a context of 1024 tokens needs .* are free: --context 768 fits"):
        LoadedPair(Options(threads=1, context=1024, backend="llama.cpp"))


def test_costs_that_are_handed_in_decide_and_are_not_measured() -> None:
    asked: list[list[str]] = []

    def costs(_target: Target, drafters: Sequence[Drafter]) -> Controller:
        asked.append([drafter.name for drafter in drafters])
        return Controller({1: 1.0, 2: 99.0, 32: 99.0}, {drafter.name: 99.0 for drafter in drafters})

    options = Options(threads=1, backend="llama.cpp", costs=costs)
    request = Request([5, 6, 7] * 8, 8)
    with LoadedPair(options) as loaded:
        assert all(not step.drafted for step in generate(loaded.pair, request))
    assert asked == [["lookup", "dflash"]]
    with LoadedPair(replace(options, draft=False)) as loaded:
        assert loaded.host
        assert loaded.host.controller is None
    assert len(asked) == 1


def test_errors_of_the_loader_stay_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was trained for 8 to 1024"):
        LoadedPair(Options(threads=1, context=100_000, backend="llama.cpp"))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\3")
    with pytest.raises(ModelError, match="broken GGUF file"):
        LoadedPair(Options(str(broken), backend="llama.cpp"))


def test_a_library_that_tells_no_sizes_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_lines: Any) -> None:
        raise ModelError("this build does not say")

    monkeypatch.setattr("localdflash.backends.llamacpp.llama_sizes.parse_size_lines", silent)
    with LoadedPair(Options(threads=1, backend="llama.cpp")) as loaded:
        assert (loaded.predicted, loaded.notice) == ({}, "")


class TestCpu:
    """Our own engine: the same words and the same care as with llama.cpp."""

    OPTIONS = Options(backend="cpu", threads=1)

    @staticmethod
    def tokens(loaded: LoadedPair) -> list[int]:
        return [token for step in generate(loaded.pair, Request([5, 6, 7], 16)) for token in step.tokens]

    def needed(self, drafter: bool = True) -> int:
        with LoadedPair(replace(self.OPTIONS, draft=drafter)) as loaded:
            return total(loaded.predicted) - loaded.predicted[PROGRAM]

    def test_asked_for_where_it_was_not_built(self, without_cpu_engine: str) -> None:
        with pytest.raises(NoDevice) as caught:
            LoadedPair(self.OPTIONS)
        assert str(caught.value) == f"the CPU engine is not there: {without_cpu_engine}"
        assert "install a C++ compiler" in without_cpu_engine

    def test_without_it_llama_cpp_runs_the_pair_without_a_word(
        self, without_cpu_engine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
        with LoadedPair(Options(threads=1)) as loaded:
            assert (loaded.backend, loaded.notice) == ("llama.cpp", "")

    @pytest.mark.usefixtures("cpu_engine")
    def test_it_needs_neither_torch_nor_llama_cpp(self) -> None:
        body = f"{IMPORTS}; LoadedPair(Options('embedded', 'cpu')).close()"
        test_a_backend_does_not_load_the_other(body, "[]")

    @pytest.mark.usefixtures("cpu_engine")
    def test_what_was_planned_is_what_is_there(self) -> None:
        with LoadedPair(self.OPTIONS) as loaded:
            planned, measured = dict(loaded.predicted), loaded.memory()
        assert (loaded.backend, loaded.notice) == ("cpu", "")
        assert planned.keys() == measured.keys()
        planned[SCRATCH] -= 1024 * 3 * 256 * 4  # hidden states of three taps, none of which waits yet
        for name in planned.keys() - {PROGRAM}:
            assert measured[name] == pytest.approx(planned[name], abs=1e4), name

    @pytest.mark.usefixtures("cpu_engine")
    def test_each_file_is_read_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read, parse = list[Path](), gguf.parse_header

        def parsed(stream: Any, size: int, path: Path) -> gguf.GGUFHeader:
            read.append(path)
            return parse(stream, size, path)

        monkeypatch.setattr(gguf, "parse_header", parsed)
        with LoadedPair(Options(device="cpu", threads=1)) as loaded:
            assert loaded.backend == "cpu"
        assert len(read) == len(set(read)) <= 2

    @pytest.mark.usefixtures("cpu_engine")
    def test_the_drafter_goes_before_the_context_is_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        everything, target = self.needed(), self.needed(drafter=False)
        with LoadedPair(self.OPTIONS) as loaded:
            drafted = self.tokens(loaded)
        with_free(everything - 1, monkeypatch)
        with LoadedPair(self.OPTIONS) as loaded:
            assert "the drafter was left out" in loaded.notice
            assert (loaded.context, DRAFTER in loaded.memory()) == (1024, False)
            assert self.tokens(loaded) == drafted
        with_free(target - 1, monkeypatch)
        with LoadedPair(self.OPTIONS) as loaded:
            assert "the context has 768 of 1024 tokens" in loaded.notice

    @pytest.mark.usefixtures("cpu_engine")
    def test_a_context_larger_than_memory_is_refused_before_anything_is_packed(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with_free(self.needed(drafter=False) - 1, monkeypatch)
        monkeypatch.setattr(
            "localdflash.backends.cpu.load_cpu.open_target", lambda *_: pytest.fail("weights were loaded")
        )
        with pytest.raises(OutOfMemory, match=r"a context of 1024 tokens needs .* are free: --context 768 fits"):
            LoadedPair(replace(self.OPTIONS, context=1024))
        with pytest.raises(UsageError, match=r"context of 100000 tokens: target.gguf was trained for 8 to 1024"):
            LoadedPair(replace(self.OPTIONS, context=100_000))

    @pytest.mark.usefixtures("cpu_engine")
    def test_what_cannot_be_loaded_after_all_goes_to_llama_cpp_with_one_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from localdflash.loading.engine_choice import HostChoice

        def refuse(*_: Any) -> None:
            raise OutOfMemory("target.gguf: packed weights need 9 MiB, 1 MiB of memory are free")

        monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
        monkeypatch.setattr("localdflash.loading.automatic.choose", lambda *_: HostChoice("cpu", "a test"))
        monkeypatch.setattr("localdflash.backends.cpu.load_cpu.open_target", refuse)
        with LoadedPair(Options(threads=1)) as loaded:
            assert loaded.backend == "llama.cpp"
            assert loaded.notice.startswith("llama.cpp runs this pair, not the CPU engine: target.gguf: packed weights")

    @pytest.mark.usefixtures("cpu_engine")
    def test_what_failed_is_freed_before_llama_cpp_takes_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from localdflash.backends.cpu.cpu_library import ThreadPool
        from localdflash.backends.cpu.cpu_target import CpuTarget
        from localdflash.engine.calibrate import calibrate
        from localdflash.loading.engine_choice import HostChoice

        happened: list[str] = []
        close = ThreadPool.close

        def fails_at_first(target: Any, drafters: Any) -> Any:
            happened.append(type(target).__name__)
            if isinstance(target, CpuTarget):
                raise OutOfMemory("no room to measure in")
            return calibrate(target, drafters)

        def closes(team: ThreadPool) -> None:
            happened.append("closed")
            close(team)

        monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
        monkeypatch.setattr("localdflash.loading.automatic.choose", lambda *_: HostChoice("cpu", "a test"))
        monkeypatch.setattr(ThreadPool, "close", closes)
        with LoadedPair(Options(threads=1, costs=fails_at_first)) as loaded:
            assert loaded.notice == "llama.cpp runs this pair, not the CPU engine: no room to measure in"
        assert happened == ["CpuTarget", "closed", "LlamaCppTarget"]

    @pytest.mark.usefixtures("cpu_engine")
    def test_what_one_backend_saved_is_not_for_the_other(self) -> None:
        identities = set()
        for backend in ("cpu", "llama.cpp"):
            with LoadedPair(replace(self.OPTIONS, backend=backend)) as loaded:
                identities.add(loaded.identity())
        assert len(identities) == 2


class TestCuda:
    """The policy on a simulated GPU: what `load_pair` is asked for."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        from localdflash.backends.cuda import device

        asked: list[Any] = []

        def load_pair(_target: Path, drafter: Path | None, _device: Any, settings: Any, *_: Any) -> Any:
            asked.append((drafter and drafter.name, settings))
            raise ModelError("no GPU here")

        monkeypatch.setattr(device, "find_gpus", lambda _name: [CardGpu(0)])
        monkeypatch.setattr("localdflash.backends.cuda.load_cuda.load_pair", load_pair)
        return asked

    @staticmethod
    def with_room(space: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give the GPU so many free bytes."""
        monkeypatch.setattr(
            "localdflash.backends.cuda.load_cuda.budget_of", lambda _device: MemoryBudget(space, 0, "GPU memory")
        )

    @staticmethod
    def sizes(pair: Path) -> Any:
        from localdflash.backends.cuda.cuda_sizes import CudaSizes

        return CudaSizes(pair / "target.gguf", pair / "drafter.safetensors")

    @staticmethod
    def options(pair: Path, **more: Any) -> Options:
        """A pair whose drafter is there as safetensors, which the CUDA engine quantizes itself."""
        return Options(str(pair / "target.gguf"), "cuda", context=512, **more)

    @pytest.mark.parametrize(
        ("holds", "most_bits", "name", "bits"),
        [
            ("8 bits", 8, "drafter.safetensors", 8),
            ("8 bits", 4, "drafter.safetensors", 4),
            ("4 bits", 8, "drafter.safetensors", 4),
            ("none", 8, None, 8),
        ],
    )
    def test_the_drafter_shrinks_then_goes(
        self,
        holds: str,
        most_bits: int,
        name: str | None,
        bits: int,
        tiny_pair: Path,
        asked: list[Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.with_room(total(self.sizes(tiny_pair).parts(512, holds)), monkeypatch)
        with pytest.raises(ModelError, match="no GPU here"):
            LoadedPair(self.options(tiny_pair, drafter_bits=most_bits))
        ((found, settings),) = asked
        assert (found, settings.drafter_bits, settings.context, settings.draft) == (name, bits, 512, True)

    @pytest.mark.usefixtures("asked")
    def test_what_one_drafter_saved_is_for_no_other(self, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        target = SimpleNamespace(config=SimpleNamespace(vocab_size=64))
        pair = SimpleNamespace(stepper=SimpleNamespace(context=1024, block=0, target=target), close=lambda: None)
        monkeypatch.setattr("localdflash.backends.cuda.load_cuda.load_pair", lambda *_, **__: pair)
        identities = set()
        for holds in ("8 bits", "4 bits", "none"):
            self.with_room(total(self.sizes(tiny_pair).parts(512, holds)), monkeypatch)
            with LoadedPair(self.options(tiny_pair)) as loaded:
                identities.add(loaded.identity())
        assert len(identities) == 3

    @pytest.mark.usefixtures("without_cpu_engine")
    def test_a_gpu_that_is_too_small_leaves_the_pair_to_llamacpp(
        self, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: True)
        self.with_room(1000, monkeypatch)
        with LoadedPair(Options(backend="auto", threads=1)) as loaded:
            assert loaded.backend == "llama.cpp"
            assert loaded.notice.startswith("llama.cpp runs this pair, not the CUDA engine: a context of 512 tokens")
        assert asked == []
        with pytest.raises(OutOfMemory):
            LoadedPair(Options(backend="cuda"))


class TestRowsOfLlamaCpp:
    """What a session does with what was certified, handed in."""

    def load(
        self, tiny_pair: Path, record: FileMeasurement, monkeypatch: pytest.MonkeyPatch, **more: Any
    ) -> LoadedPair:
        monkeypatch.setattr(certified, "measure", lambda *_: record)
        return LoadedPair(Options(str(tiny_pair / "target.gguf"), "llama.cpp", threads=1, context=256, **more))

    def test_exact_rows_draft_and_say_their_price(self, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        known = MeasuredMode(DecodeMode(NOT_REPACKED, (2, 4, 8), borders=True), {2: 1.1, 8: 2.0})
        with self.load(tiny_pair, FileMeasurement(1.0, (known,)), monkeypatch) as loaded:
            assert loaded.host
            assert loaded.host.target.max_width == 8
            assert loaded.rows.startswith("exact: ")
            assert "1.10" in loaded.rows
            assert "exact" not in loaded.notice
            assert str(known.mode) in loaded.identity()

    def test_what_is_too_dear_runs_fast_and_the_user_is_told(
        self, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dear = FileMeasurement(1.0, (MeasuredMode(DecodeMode(NOT_REPACKED, (2, 4, 8)), {2: 1.5, 8: 2.0}),))
        with self.load(tiny_pair, dear, monkeypatch) as loaded:
            assert "may differ" in loaded.notice
            assert loaded.notice.endswith(loaded.rows)
        with self.load(tiny_pair, dear, monkeypatch, rows="exact") as loaded:
            assert (loaded.rows[:5], loaded.notice) == ("exact", "")
        with self.load(tiny_pair, dear, monkeypatch, rows="fast") as loaded:
            assert (loaded.rows[:4], loaded.notice) == ("fast", "")

    def test_a_model_alone_drafts_nothing_where_that_costs_something(
        self, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "target.gguf").symlink_to(tiny_pair / "target.gguf")
        dear = FileMeasurement(1.0, (MeasuredMode(DecodeMode(NOT_REPACKED, (2, 4, 8)), {2: 1.1, 8: 2.0}),))
        for rows, drafts in (("auto", False), ("exact", True)):
            with self.load(tmp_path, dear, monkeypatch, rows=rows) as loaded:
                assert loaded.host
                assert (bool(loaded.host.drafters), loaded.notice) == (drafts, "")

    def test_a_drafter_without_taps_is_refused_and_the_model_runs(
        self, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(llamacpp, "TAPPED", frozenset({"llama"}))
        with self.load(tiny_pair, FileMeasurement(1.0, (MeasuredMode(DEFAULT, {2: 1.0}),)), monkeypatch) as loaded:
            assert loaded.host
            assert [drafter.name for drafter in loaded.host.drafters] == ["lookup"]
            assert "no hidden states of qwen3" in loaded.notice
            assert "\n" not in loaded.notice
