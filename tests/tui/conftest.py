"""Fixtures of all screen tests: dialogs accept keys at once, and pilots wait no longer than needed."""

import asyncio
import time

import pytest

from localdflash.tui.screens import dialog


async def _wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """Wait until the loop has nothing ready and the process is idle: Textual's own function polls every 20 ms."""
    loop, end = asyncio.get_running_loop(), time.monotonic() + max_sleep
    while time.monotonic() < end:
        used = time.process_time()
        await asyncio.sleep(0.003)
        if not loop._ready and time.process_time() - used < 0.0005:  # type: ignore[attr-defined]
            break


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialog, "QUIET_SECONDS", 0.0)
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", _wait_for_idle)
