"""Screenshots of the chat, made by the chat itself with the embedded pair.

python -P bench/chat_pictures.py            # writes docs/pictures/chat*.svg
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
SIZE = (110, 32)
QUESTIONS = (  # as the embedded pair was taught to be asked
    "Write this Python function.\n```python\ndef read_lines(path):\n```\nReturn the lines of a file.",
    """Rename `lines` to `rows`.
```python
def read_lines(path, encoding="utf-8"):
    lines = []
    with open(path, encoding=encoding) as file:
        for line in file:
            lines.append(line.rstrip())
    return lines
```""",
)


async def pictures(folder: Path) -> None:
    """Go through the chat and save what it looks like."""
    from localdflash.chat.settings import ChatSettings
    from localdflash.chat.sources import PrivateDaemon
    from localdflash.server.wanted import Wanted
    from localdflash.tui.app import ChatApp
    from localdflash.tui.base import Start

    options = {"pair": "embedded", "backend": "auto", "threads": 2, "context": 0, "kv": "f16", "drafter_bits": 8}
    app = ChatApp(Start(PrivateDaemon(Wanted(options)), folder, folder / "chats.db", ChatSettings(max_tokens=110)))

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)

    def save(name: str) -> None:
        (PICTURES / f"{name}.svg").write_text(app.export_screenshot(title="localdflash chat"))

    async with app.run_test(size=SIZE) as pilot:
        await until(lambda: app.talk.answerer.stage == "ready")
        save("chat-welcome")
        for question in QUESTIONS:
            app.ask(question)
            await until(lambda: app.talk.messages[-1].finish)
        save("chat")
        await pilot.press("f2", "f3")
        await until(lambda: True)
        save("chat-accepted")
        await pilot.press("f2", "f3", "f1")
        await until(lambda: True)
        save("chat-help")
        await pilot.press("escape", "f5")
        await asyncio.sleep(6)
        save("chat-bench")
        await pilot.press("escape", "ctrl+o")
        await until(lambda: True)
        save("chat-chats")
        await pilot.press("escape", "ctrl+q")


def main() -> None:
    """Make all of them, in a home of their own."""
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as home:
        os.environ["LOCALDFLASH_HOME"] = home
        folder = Path(home) / "project"
        folder.mkdir()
        PICTURES.mkdir(exist_ok=True)
        asyncio.run(pictures(folder))


if __name__ == "__main__":
    main()
