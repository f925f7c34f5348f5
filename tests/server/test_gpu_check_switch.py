"""A pair under its first GPU check: another backend answers meanwhile, and the CUDA engine after it passed."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.base.errors import NoDevice, OutOfMemory
from localdflash.loading import proof
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import CHECKING_GPU
from tests.support.engine_daemon import CHAT, HELLO, LOADED, PLACE, Daemon


@pytest.fixture
async def checking(make: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Daemon, threading.Event]:
    """Start engines whose pair is being checked on a GPU; the event ends the check, which passes."""
    passed = threading.Event()
    subjects = iter([SimpleNamespace(why_not=lambda: "")])
    monkeypatch.setattr(proof, "find_unchecked_subject", lambda *_: next(subjects, None))
    monkeypatch.setattr(proof, "check", lambda *_: passed.wait())
    return await make(), passed


async def test_the_first_answer_does_not_wait_for_torch(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the GPU is known, which takes an import of torch, the pair is checked; then it may turn out unfit."""
    imported = threading.Event()

    def identify(*_: Any) -> Any:
        imported.wait()
        raise NoDevice("torch is too old")

    monkeypatch.setattr(proof, "is_first_check", lambda _: True)
    monkeypatch.setattr(proof.Subject, "of", identify)
    daemon = await make()
    assert await daemon.answered_by(CHAT, HELLO)
    assert (await daemon.get("/ps"))["gpu_check"] == CHECKING_GPU
    imported.set()
    while (status := await daemon.get("/ps"))["gpu_check"]:
        await asyncio.sleep(0.005)
    assert "no CUDA engine: torch is too old" in status["notice"]


async def test_a_daemon_that_stops_before_torch_is_imported_starts_no_check(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check's child would be killed with the process, and count as a crash."""
    imported, identified = threading.Event(), threading.Event()
    checks = list[Any]()

    def identify(*_: Any) -> Any:
        imported.wait()
        identified.set()
        return SimpleNamespace(why_not=lambda: "")

    monkeypatch.setattr(proof, "is_first_check", lambda _: True)
    monkeypatch.setattr(proof.Subject, "of", identify)
    monkeypatch.setattr(proof, "check", lambda *given: checks.append(given))
    daemon = await make()
    thread = next(one for one in threading.enumerate() if one.name == "gpu check")
    await asyncio.to_thread(daemon.engines.close)
    imported.set()
    await asyncio.to_thread(thread.join)
    assert (identified.is_set(), checks) == (True, [])


async def until_passed(daemon: Daemon, passed: threading.Event) -> None:
    passed.set()
    while not daemon.engines.worker("chat").passed_check:  # type: ignore[union-attr]
        await asyncio.sleep(0.005)


async def test_a_pair_whose_gpu_check_passes_is_loaded_again_between_two_answers(checking: Any, tiny: str) -> None:
    daemon, passed = checking
    before = daemon.engines.worker("chat")
    status = await daemon.get("/ps")
    assert (status["gpu_check"], "until the CUDA engine is checked" in status["notice"]) == (CHECKING_GPU, True)
    async with daemon.answering(tiny):
        await until_passed(daemon, passed)
        assert await daemon.engines.switch_to_gpu() == []
    assert len(await daemon.engines.switch_to_gpu()) == 1
    assert daemon.engines.worker("chat") is daemon.engines.worker("completion") is not before
    assert await daemon.answered_by(CHAT, HELLO) == tiny
    assert await daemon.engines.switch_to_gpu() == []


async def test_a_checked_pair_that_fails_to_load_again_is_loaded_by_the_next_request(
    checking: Any, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, passed = checking
    await until_passed(daemon, passed)
    with monkeypatch.context() as patch:
        patch.setattr(LOADED, lambda options: has_no_memory())
        with pytest.raises(OutOfMemory):
            await daemon.engines.switch_to_gpu()
    assert await daemon.answered_by(CHAT, HELLO) == tiny
    assert await daemon.answered_by("/complete", PLACE) == tiny


def has_no_memory() -> LoadedPair:
    raise OutOfMemory("9.00 GB are needed, 1.00 GB of memory are free")
