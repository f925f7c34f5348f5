"""Each check on simulated machines: its finding and its remedy."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from localdflash.base.errors import ModelError, NoDevice
from localdflash.base.files import paths
from localdflash.base.machine import hardware, measurements
from localdflash.cli.doctor import command, installation, resources, self_test
from localdflash.cli.doctor.check import DoctorCheck, Finding
from localdflash.models.config import Config, ModelConfig
from localdflash.models.memory import free
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.registry import records
from localdflash.models.registry.pair_entry import models_folder
from localdflash.server.client import DaemonHangs
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("required", "error", "status", "detail"),
    [
        (True, ModelError("target.gguf: broken"), "failed", "target.gguf: broken"),
        (True, ImportError("no shared library"), "failed", "cannot be loaded: no shared library"),
        (False, OSError("bad ELF header"), "warning", "cannot be loaded: bad ELF header"),
        (False, ZeroDivisionError("a bug"), "warning", "ZeroDivisionError: a bug"),
    ],
)
def test_error_in_a_check_is_a_finding(required: bool, error: Exception, status: str, detail: str) -> None:
    def broken(_name: str) -> Finding:
        raise error

    found = DoctorCheck("part", broken, "install it", required).check()
    assert (found.name, found.status, found.detail, found.remedy) == ("part", status, detail, "install it")


class TestInstallation:
    def test_settings_with_their_files(self) -> None:
        check = DoctorCheck("settings", installation.settings, "correct it")
        assert check.check().status == "ok"
        paths.config_folder().mkdir(parents=True)
        config_file = paths.config_folder() / "config.toml"
        config_file.write_text("[model]\nthreads = 1\n")
        assert f"model.threads ({config_file})" in check.check().detail
        (paths.config_folder() / "models.toml").write_text("pair = 1")
        assert (check.check().status, "models.toml" in check.check().detail) == ("failed", True)
        config_file.write_text("[model]\nthreads = -1\n")
        assert (check.check().status, "config.toml" in check.check().detail) == ("failed", True)

    @pytest.mark.parametrize(
        ("cuda", "hip", "driver", "build", "advised"),
        [
            (None, None, False, "", False),
            ("13.0", None, False, "CUDA 13.0", True),
            (None, "7.2", False, "ROCm 7.2", False),
        ],
    )
    def test_torch_build(
        self, cuda: str | None, hip: str | None, driver: bool, build: str, advised: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        torch = SimpleNamespace(__spec__=True, __version__="2.13.0", version=SimpleNamespace(cuda=cuda, hip=hip))
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: driver)
        found = installation.torch("torch")
        assert (found.status, found.detail.startswith("2.13.0"), build in found.detail) == ("ok", True, True)
        assert ("/whl/cpu" in found.remedy) == advised

    @pytest.mark.parametrize(
        ("driver", "has_cuda", "status", "detail", "remedy"),
        [
            (False, True, "ok", "no NVIDIA driver", ""),
            (True, False, "warning", "built without CUDA", "install a CUDA build of torch"),
            (True, True, "warning", "no C compiler", "gcc"),
        ],
    )
    def test_reasons_why_cuda_is_not_used(
        self, driver: bool, has_cuda: bool, status: str, detail: str, remedy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def find() -> None:
            if not has_cuda:
                raise NoDevice("PyTorch 2.9: built without CUDA; install a CUDA build of torch")

        monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: driver)
        monkeypatch.setattr("localdflash.backends.cuda.device.find_device", find)
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setattr("shutil.which", lambda _name: None)
        monkeypatch.setattr("sys.platform", "linux")
        found = installation.cuda("cuda")
        assert (found.status, detail in found.detail, remedy in found.remedy) == (status, True, True)
        assert bool(found.remedy) == bool(remedy)

    @pytest.mark.usefixtures("without_cpu_engine")
    def test_missing_cpu_engine(self) -> None:
        found = installation.cpu_engine("cpu engine")
        assert found.status == "warning"
        assert "install a C++ compiler" in found.remedy
        assert found.remedy not in found.detail

    @pytest.mark.parametrize(
        ("flags", "built", "status", "expected"),
        [
            ("sse3 avx2", "CPU : SSE3 = 1 | AVX2 = 1 | AVX = 0 | ", "ok", "SSE3 AVX2"),
            ("sse3 avx2", "CPU : SSE3 = 1 | ", "warning", "this CPU has AVX2"),
            ("avx2 avx512f avx512_vnni", "CPU : AVX2 = 1 | ", "ok", "this CPU also has AVX512 AVX512_VNNI"),
            ("", "Metal : EMBED_LIBRARY = 1 | CPU : NEON = 1 | ", "ok", "EMBED_LIBRARY NEON"),
        ],
    )
    def test_llama_cpp_build_is_compared_with_the_cpu(
        self, flags: str, built: str, status: str, expected: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import llama_cpp.llama_cpp as api

        monkeypatch.setattr(hardware, "read_cpuinfo", lambda: {"flags": flags})
        monkeypatch.setattr(api, "llama_print_system_info", built.encode)
        found = installation.llama("llama-cpp-python")
        assert (found.status, expected in found.detail) == (status, True)
        assert bool(found.remedy) == ("this CPU" in expected)


class TestMachine:
    @pytest.mark.parametrize(("available", "status"), [(900_000_000, "warning"), (9_000_000_000, "ok")])
    def test_low_memory_is_a_warning(self, available: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(free, "system_budget", lambda: MemoryBudget(available, 0, "memory"))
        assert resources.memory("memory").status == status

    @pytest.mark.parametrize("folder", ["owner/name", "adapted"])
    def test_model_changed_since_its_verification(self, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=10**12))
        path = models_folder() / folder / "model.gguf"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"model")
        stat = path.stat()
        record = records.FileRecord("owner/name", "c", "main", "0" * 64, stat.st_size, stat.st_mtime_ns, stat.st_ino)
        records.write(path, record)
        found = resources.models("models")
        assert (found.status, f"{models_folder()}: 1 file," in found.detail) == ("ok", True)
        path.write_bytes(b"other bytes")
        found = resources.models("models")
        assert (found.status, "model.gguf changed since" in found.detail) == ("warning", True)

    @pytest.mark.parametrize(("text", "status"), [("8192\n", "warning"), ("524288\n", "ok"), (None, "ok")])
    def test_inotify_watches(
        self, text: str | None, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "max_user_watches"
        if text:
            place.write_text(text)
        monkeypatch.setattr(resources, "WATCHES", place)
        assert resources.watches("inotify").status == status


class TestSurroundings:
    def test_daemon_socket(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        probe = DoctorCheck("socket", resources.runtime_socket, "shorter")
        assert probe.check().status == "ok"
        assert resources.daemon("daemon").detail.startswith("not running")
        paths.runtime_folder().mkdir(parents=True)
        paths.runtime_folder().chmod(0o755)
        assert (probe.check().status, "chmod 700" in probe.check().detail) == ("failed", True)
        monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path / ("long" * 30)))
        assert (probe.check().status, str(paths.SOCKET_LIMIT) in probe.check().detail) == ("failed", True)

    def test_a_daemon_that_hangs_is_not_to_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def find_daemon() -> None:
            raise DaemonHangs("the daemon does not respond; kill its process")

        monkeypatch.setattr("localdflash.server.client.find_daemon", find_daemon)
        (check,) = (check for check in command._checks() if check.name == "daemon")
        assert check.check() == Finding("daemon", "warning", "the daemon does not respond; kill its process")

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "truecolor"),
            ({"TERM": "xterm-256color"}, "256 colours"),
            ({"TERM": "xterm"}, "16 colours"),
            ({"TERM": "dumb"}, "no colours"),
            ({"TERM": "xterm-kitty", "NO_COLOR": "1"}, "no colours (NO_COLOR)"),
            ({}, "no TERM"),
        ],
    )
    def test_terminal(self, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("TERM", "TERM_PROGRAM", "COLORTERM", "NO_COLOR", "TMUX"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert expected in resources.terminal("terminal").detail
        monkeypatch.setattr("sys.stdout", SimpleNamespace(encoding="ascii", isatty=lambda: True))
        found = resources.terminal("terminal")
        assert (found.status, "UTF-8" in found.remedy) == ("warning", True)

    def test_editors(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert resources.editors("editors").detail.startswith("none")
        for name in ("nvim", "hx"):
            (tmp_path / name).touch(0o755)
        found = resources.editors("editors")
        assert (found.status, found.detail) == ("ok", "Neovim, Helix")
        assert "localdflash serve --port" in found.remedy
        assert "/infill" in found.remedy


def test_doctor_on_a_working_installation(run: Command) -> None:
    done = run("doctor", "--json", "--full")
    checks = json.loads(done.out)
    assert [check["name"] for check in checks] == [probe.name for probe in command._checks()]
    assert all(check.keys() == {"name", "status", "detail", "remedy"} for check in checks)
    assert (done.code, [check for check in checks if check["status"] == "failed"]) == (0, [])
    embedded, completion, chat = checks[-3:]
    assert "identical" in embedded["detail"]
    assert all(check["detail"].startswith("embedded, ") for check in (completion, chat))
    assert "models pull smollm2-135m" in chat["remedy"]
    tau = measurements.recall("tau of embedded")
    assert tau is not None
    assert f"{tau.value:.2f} tokens per verify step" in embedded["detail"]


def test_warning_exits_with_0_and_prints_its_remedy(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def little(name: str) -> Finding:
        return Finding(name, "warning", "little\x1b[2J is free", "close other programs")

    monkeypatch.setattr(command, "_checks", lambda: (DoctorCheck("memory", little, ""),))
    done = run("doctor")
    assert done.code == 0
    line, remedy, more = done.out.splitlines()
    assert line.split(maxsplit=2) == ["warning", "memory", "little\\x1b[2J is free"]
    assert remedy.strip() == "close other programs"
    assert "doctor --full" in more


def test_self_tests_run_with_the_settings_of_config_toml() -> None:
    config = Config(ModelConfig(context=512, drafter_bits=4, kv="int8"))
    options = self_test._configured(config, "embedded")
    assert (options.pair, options.context, options.drafter_bits, options.kv) == ("embedded", 512, 4, "int8")


@pytest.mark.parametrize(("rows", "status"), [("fast", "ok"), ("exact", "failed")])
def test_text_changed_by_drafting_fails_unless_widths_are_uncertified(
    rows: str, status: str, run: Command, monkeypatch: pytest.MonkeyPatch, tiny_pair: Path
) -> None:
    from localdflash.engine import generate as engine
    from localdflash.engine.pair import Step

    monkeypatch.setattr(command, "_checks", lambda: (DoctorCheck("chat pair", self_test.chat_pair, ""),))
    pair = str(tiny_pair / "target.gguf")
    for name, value in (("CHAT_PAIR", pair), ("MODEL_BACKEND", "llama.cpp"), ("MODEL_ROWS", rows)):
        monkeypatch.setenv(f"LOCALDFLASH_{name}", value)
    runs = iter([[7, 8], [7, 9]])
    monkeypatch.setattr(engine, "generate", lambda *_: iter([Step(next(runs), "none", 0, 0, 0.0, 1.0)]))
    done = run("doctor", "--json")
    (check,) = json.loads(done.out)
    assert (check["status"], done.code) == (status, int(status == "failed")), check
    assert ("drafted text may differ" in check["detail"]) == (rows == "fast")
    assert measurements.recall(f"tau of {pair}") is None


@pytest.mark.checks_gpu
def test_check_gpu_without_a_gpu(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
    assert "no NVIDIA driver" in fails(1, "doctor", "--check-gpu", "embedded")
