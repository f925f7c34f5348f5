"""Which backend `auto` means where there are GPUs, by what is asked of the backends' loads."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.backends.cuda import device
from localdflash.base.errors import LocaldflashError, ModelError, NoDevice, OutOfMemory, UsageError
from localdflash.base.machine import gpu_watch
from localdflash.loading import automatic
from localdflash.loading.engine_choice import HostChoice
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.running_pair import Running

FILES: Any = SimpleNamespace(target=Path("target.gguf"))
Load = Callable[..., tuple[Runner, Running]]
Asked = list[tuple[str, str]]


@pytest.fixture
def asked() -> Asked:
    """The loads that were asked for: backend and device."""
    return []


@pytest.fixture
def load(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Load:
    """`load_best` on a machine with such GPUs; backends in `broken` raise."""

    def best(
        options: Options, *, nvidia: bool = False, seen: bool = True, broken: dict[str, LocaldflashError] | None = None
    ) -> tuple[Runner, Running]:
        def load_on(backend: Runner, _files: LocalPair, given: Options) -> Running:
            asked.append((backend, given.device))
            if error := (broken or {}).get(backend if given.device == "cpu" else f"{backend} {given.device}"):
                raise error
            nothing: Any = None
            return Running(
                pair=nothing,
                context=0,
                device=given.device,
                vocab_size=0,
                identity=(),
                measured=dict,
                close=lambda: None,
            )

        monkeypatch.setattr(automatic, "load_on", load_on)
        monkeypatch.setattr(automatic, "gpu_is_there", lambda: seen)
        monkeypatch.setattr(device, "driver_present", lambda: nvidia)
        monkeypatch.setattr(automatic, "choose", lambda *_: HostChoice("cpu", "a test"))
        return automatic.load_best(FILES, options)

    return best


def test_the_order_of_trying(load: Load, asked: Asked) -> None:
    broken = {"cuda auto": ModelError("a type"), "llama.cpp gpu": OutOfMemory("3 of 29 layers"), "cpu": NoDevice("old")}
    backend, running = load(Options(), nvidia=True, broken=broken)
    assert asked == [("cuda", "auto"), ("llama.cpp", "gpu"), ("cpu", "cpu"), ("llama.cpp", "cpu")]
    assert (backend, running.notices[0]) == (
        "llama.cpp",
        "llama.cpp runs this pair, not the CUDA engine: a type; not a GPU through llama.cpp: 3 of 29 layers;"
        " not the CPU engine: old",
    )


@pytest.mark.parametrize("full", ["cuda auto", "llama.cpp gpu"])
def test_a_pair_that_is_to_be_roomy_is_not_put_elsewhere_than_on_the_gpu_that_is_full(
    full: str, load: Load, asked: Asked
) -> None:
    """Another pair may leave there; when none is left it is asked for again, and may be cramped."""
    broken = {"cuda auto": ModelError("a type")} | {full: OutOfMemory("9 GB are needed")}
    with pytest.raises(OutOfMemory, match="9 GB are needed"):
        load(Options(roomy=True), nvidia=True, broken=broken)
    assert f"{asked[-1][0]} {asked[-1][1]}" == full
    assert load(Options(), nvidia=True, broken=broken)[0] in ("llama.cpp", "cpu")


@pytest.mark.parametrize(
    ("deaths", "options", "device"),
    [
        (1, Options(), "gpu"),
        (2, Options(), "cpu"),
        (2, Options(gpu_layers=4), "gpu"),
        (2, Options(device="Vulkan0"), "Vulkan0"),
    ],
)
def test_a_gpu_that_keeps_ending_the_engine_is_used_where_it_is_asked_for(
    deaths: int, options: Options, device: str, load: Load, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_watch, "deaths", lambda: deaths)
    _, running = load(options)
    assert asked[0][1] == device
    assert ("it ended the engine 2 times today" in running.notices[0]) == (device == "cpu")


@pytest.mark.parametrize("options", [Options(device="cpu"), Options(gpu_layers=0)])
def test_the_processor_can_be_asked_for(options: Options, load: Load, asked: Asked) -> None:
    assert load(options, nvidia=True)[0] == "cpu"
    assert asked == [("cpu", "cpu")]


@pytest.mark.parametrize("options", [Options(device="Vulkan0"), Options(device="Vulkan0", gpu_layers=4)])
def test_a_gpu_that_is_named_is_the_one_or_nothing(options: Options, load: Load, asked: Asked) -> None:
    assert load(options, nvidia=True)[0] == "llama.cpp"
    with pytest.raises(NoDevice, match="gone"):
        load(options, broken={"llama.cpp Vulkan0": NoDevice("gone")})
    assert asked == [("llama.cpp", "Vulkan0")] * 2


def test_a_gpu_that_was_asked_for_says_why_neither_engine_runs_on_it(load: Load) -> None:
    broken = {"cuda gpu": ModelError("a type"), "llama.cpp gpu": NoDevice("none seen")}
    with pytest.raises(NoDevice, match=r"^not the CUDA engine: a type; none seen$"):
        load(Options(device="gpu"), nvidia=True, broken=broken)


def test_layers_mean_llama_cpp(load: Load, asked: Asked) -> None:
    assert load(Options(gpu_layers=4), nvidia=True)[0] == "llama.cpp"
    assert asked == [("llama.cpp", "gpu")]


def test_without_a_gpu_nothing_is_said(load: Load, asked: Asked) -> None:
    backend, running = load(Options(), seen=False)
    assert (backend, [*filter(None, running.notices)], asked) == ("cpu", [], [("cpu", "cpu")])


def test_a_build_for_processors_is_not_loaded_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "gpu_backends", set)
    monkeypatch.setattr("localdflash.backends.llamacpp.devices.devices", lambda: pytest.fail("llama.cpp was asked"))
    assert not automatic.gpu_is_there()


@pytest.mark.parametrize(("backend", "device"), [("cpu", "Vulkan0"), ("torch", "gpu"), ("cuda", "cpu")])
def test_other_backends_have_no_choice(backend: Runner, device: str) -> None:
    with pytest.raises(UsageError, match=f"--device {device}: not a device of --backend {backend}"):
        LoadedPair(replace(Options(), backend=backend, device=device))
