"""Each backend loads what it needs and no more, and what fits; identity holds across them by other tests."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.engine.generate import Request, generate
from localdflash.errors import ModelError, OutOfMemory, UsageError
from localdflash.loading import LoadedPair, Options
from localdflash.plan import free
from localdflash.plan.fit import Budget
from localdflash.plan.parts import DRAFTER, PROGRAM, SCRATCH, total
from localdflash.targets import llamacpp

RUN = "import sys; {body}; print(sorted(m for m in ('torch', 'llama_cpp') if m in sys.modules))"


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        (
            "from localdflash.loading import LoadedPair, Options; LoadedPair(Options(threads=1)).close()",
            "['llama_cpp']",
        ),
        ("import localdflash.targets.torch_target, localdflash.drafters.dflash_files", "['torch']"),
        ("import localdflash.cli, localdflash.registry, localdflash.engine.generate", "[]"),
    ],
)
def test_a_backend_does_not_load_the_other(body: str, loaded: str) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", RUN.format(body=body)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == loaded


def with_free(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free, "system_budget", lambda: Budget(count, 0, "memory"))


def needed(drafter: bool = True) -> int:
    """Bytes that the embedded pair takes beside the program."""
    with LoadedPair(Options(threads=1, draft=drafter)) as loaded:
        return total(loaded.predicted) - loaded.predicted[PROGRAM]


def test_what_was_planned_is_what_is_there() -> None:
    with LoadedPair(Options(threads=1)) as loaded:
        planned, measured = loaded.predicted, loaded.memory()
    assert loaded.notice == ""
    assert planned.keys() == measured.keys()
    for name in planned.keys() - {PROGRAM, SCRATCH}:
        assert measured[name] == pytest.approx(planned[name], abs=1e4), name


def test_the_drafter_goes_before_the_context_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = needed()
    with_free(everything - 1, monkeypatch)
    with LoadedPair(Options(threads=1)) as loaded:
        assert "the drafter was left out" in loaded.notice
        assert "\n" not in loaded.notice
        assert loaded.context == 1024
        assert DRAFTER not in loaded.predicted
        assert DRAFTER not in loaded.memory()
        plain = [token for step in generate(loaded.pair, Request([5, 6, 7], 16)) for token in step.tokens]
    with_free(everything, monkeypatch)
    with LoadedPair(Options(threads=1)) as loaded:
        assert loaded.notice == ""
        assert plain == [token for step in generate(loaded.pair, Request([5, 6, 7], 16)) for token in step.tokens]


def test_a_shorter_context_is_chosen_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(needed(drafter=False) - 1, monkeypatch)
    with LoadedPair(Options(threads=1)) as loaded:
        assert loaded.context == 768
        assert "the context has 768 of 1024 tokens" in loaded.notice


def test_a_context_that_was_asked_for_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(needed(drafter=False) - 1, monkeypatch)

    def loads(*_: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr(llamacpp, "LlamaCppTarget", loads)
    with pytest.raises(OutOfMemory, match=r"a context of 1024 tokens needs .* are free: --context 768 fits"):
        LoadedPair(Options(threads=1, context=1024))


def test_errors_of_the_loader_stay_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="was trained for 8 to 1024"):
        LoadedPair(Options(threads=1, context=100_000))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\3")
    with pytest.raises(ModelError, match="broken GGUF file"):
        LoadedPair(Options(str(broken)))


def test_a_library_that_tells_no_sizes_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_lines: Any) -> None:
        raise ModelError("this build does not say")

    monkeypatch.setattr("localdflash.plan.llamacpp.sizes_said", silent)
    with LoadedPair(Options(threads=1)) as loaded:
        assert (loaded.predicted, loaded.notice) == ({}, "")


class TestCuda:
    """The policy on a simulated GPU: what `load_pair` is asked for."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        from localdflash.cuda import device, load

        asked: list[Any] = []

        def load_pair(_target: Path, drafter: Path | None, _device: Any, settings: Any, progress: Any) -> Any:
            asked.append((drafter and drafter.name, settings))
            raise ModelError("no GPU here")

        monkeypatch.setattr(device, "find_device", lambda: "cuda")
        monkeypatch.setattr(load, "load_pair", load_pair)
        return asked

    @staticmethod
    def sizes() -> Any:
        from localdflash.plan.cuda import CudaSizes

        embedded = Path(llamacpp.__file__).parents[1] / "embedded"
        return CudaSizes(embedded / "target.gguf", embedded / "drafter.safetensors")

    @pytest.mark.parametrize(
        ("holds", "most_bits", "name", "bits"),
        [
            ("8 bits", 8, "drafter.safetensors", 8),
            ("8 bits", 4, "drafter.safetensors", 4),
            ("4 bits", 8, "drafter.safetensors", 4),
            ("none", 8, None, 8),
            ("none", 4, None, 4),
        ],
    )
    def test_the_drafter_shrinks_then_goes(
        self, holds: str, most_bits: int, name: str | None, bits: int, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        space = total(self.sizes().parts(1024, holds))
        monkeypatch.setattr(free, "gpu_budget", lambda: Budget(space, 0, "GPU memory"))
        with pytest.raises(ModelError, match="no GPU here"):
            LoadedPair(Options(backend="cuda", context=1024, drafter_bits=most_bits))
        ((found, settings),) = asked
        assert (found, settings.drafter_bits, settings.context, settings.draft) == (name, bits, 1024, True)

    @pytest.mark.usefixtures("asked")
    def test_what_one_drafter_saved_is_for_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from localdflash.cuda import load

        pair = SimpleNamespace(machine=SimpleNamespace(context=1024))
        monkeypatch.setattr(load, "load_pair", lambda *_, **__: pair)
        identities = set()
        for holds in ("8 bits", "4 bits", "none"):
            space = total(self.sizes().parts(1024, holds))
            monkeypatch.setattr(free, "gpu_budget", lambda space=space: Budget(space, 0, "GPU memory"))
            with LoadedPair(Options(backend="cuda", context=1024)) as loaded:
                identities.add(loaded.identity())
        assert len(identities) == 3

    def test_a_gpu_that_is_too_small_leaves_the_pair_to_llamacpp(
        self, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from localdflash.cuda import device

        monkeypatch.setattr(device, "driver_present", lambda: True)
        monkeypatch.setattr(free, "gpu_budget", lambda: Budget(1000, 0, "GPU memory"))
        with LoadedPair(Options(backend="auto", threads=1)) as loaded:
            assert loaded.backend == "llama.cpp"
            assert loaded.notice.startswith("llama.cpp runs this pair, not the CUDA engine: a context of 512 tokens")
        assert asked == []
        with pytest.raises(OutOfMemory):
            LoadedPair(Options(backend="cuda"))
