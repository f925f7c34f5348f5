"""Backend that `auto` chooses on machines with GPUs, with faked loads."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.backends.cuda import device
from localdflash.base.errors import LocaldflashError, ModelError, NoDevice, OutOfMemory
from localdflash.base.machine import gpu_watch
from localdflash.loading import automatic
from localdflash.loading.engine_choice import HostChoice
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running
from tests.support.pretended_gpu import running

FILES: Any = SimpleNamespace(target=Path("target.gguf"))
Load = Callable[..., tuple[Runner, Running]]
Loads = list[tuple[str, str]]


@pytest.fixture
def attempts() -> Loads:
    """Return the list of attempted loads: backend and device."""
    return []


@pytest.fixture
def load(attempts: Loads, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return `load_best` on a machine with the given GPUs; backends in `broken` raise."""

    def best(
        options: Options, *, nvidia: bool = False, seen: bool = True, broken: dict[str, LocaldflashError] | None = None
    ) -> tuple[Runner, Running]:
        def load_on(backend: Runner, _files: LocalPair, given: Options) -> Running:
            attempts.append((backend, given.device))
            if error := (broken or {}).get(backend if given.device == "cpu" else f"{backend} {given.device}"):
                raise error
            return running()

        monkeypatch.setattr(device, "gc", SimpleNamespace(collect=lambda: 0))  # slow in a process of tests
        monkeypatch.setattr(automatic, "load_on", load_on)
        monkeypatch.setattr(automatic, "gpu_is_there", lambda: seen)
        monkeypatch.setattr(device, "driver_present", lambda: nvidia)
        monkeypatch.setattr(automatic, "choose_engine", lambda *_: HostChoice("cpu", "a test"))
        return automatic.load_best(FILES, options)

    return best


def test_backends_are_tried_in_order_and_a_notice_names_each_that_failed(load: Load, attempts: Loads) -> None:
    broken = {"cuda auto": ModelError("a type"), "llama.cpp gpu": OutOfMemory("3 of 29 layers"), "cpu": NoDevice("old")}
    backend, loaded = load(Options(), nvidia=True, broken=broken)
    assert attempts == [("cuda", "auto"), ("llama.cpp", "gpu"), ("cpu", "cpu"), ("llama.cpp", "cpu")]
    assert backend == "llama.cpp"
    assert all(reason in loaded.notices[0] for reason in ("a type", "3 of 29 layers", "old"))
    attempts.clear()
    backend, loaded = load(Options(), seen=False)
    assert (backend, [*filter(None, loaded.notices)], attempts) == ("cpu", [], [("cpu", "cpu")])


@pytest.mark.parametrize("full", ["cuda auto", "llama.cpp gpu"])
def test_a_full_gpu_raises_out_of_memory_if_another_pair_can_be_unloaded(
    full: str, load: Load, attempts: Loads
) -> None:
    broken = {"cuda auto": ModelError("a type")} | {full: OutOfMemory("9 GB are needed")}
    with pytest.raises(OutOfMemory, match="9 GB are needed"):
        load(Options(can_evict=True), nvidia=True, broken=broken)
    assert f"{attempts[-1][0]} {attempts[-1][1]}" == full
    assert load(Options(), nvidia=True, broken=broken)[0] in ("llama.cpp", "cpu")


@pytest.mark.parametrize(
    ("crashes", "options", "device"),
    [
        (1, Options(), "gpu"),
        (2, Options(), "cpu"),
        (2, Options(gpu_layers=4), "gpu"),
        (2, Options(device="Vulkan0"), "Vulkan0"),
    ],
)
def test_a_gpu_that_crashed_repeatedly_is_used_only_on_request(
    crashes: int, options: Options, device: str, load: Load, attempts: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "count_crashes", lambda: crashes)
    _, loaded = load(options)
    assert attempts[0][1] == device
    assert ("2 times today" in loaded.notices[0]) == (device == "cpu")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(device="cpu"), ("cpu", "cpu")),
        (Options(gpu_layers=0), ("cpu", "cpu")),
        (Options(gpu_layers=4), ("llama.cpp", "gpu")),
        (Options(device="Vulkan0"), ("llama.cpp", "Vulkan0")),
    ],
)
def test_options_choose_the_backend_and_the_device(
    options: Options, expected: tuple[str, str], load: Load, attempts: Loads
) -> None:
    assert load(options, nvidia=True)[0] == expected[0]
    assert attempts == [expected]


def test_a_requested_gpu_has_no_fallback(load: Load) -> None:
    with pytest.raises(NoDevice, match="gone"):
        load(Options(device="Vulkan0"), broken={"llama.cpp Vulkan0": NoDevice("gone")})
    broken = {"cuda gpu": ModelError("a type"), "llama.cpp gpu": NoDevice("none seen")}
    with pytest.raises(NoDevice, match=r"a type; none seen$"):
        load(Options(device="gpu"), nvidia=True, broken=broken)
