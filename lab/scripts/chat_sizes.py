"""The chat on small and large terminals: its first screen, and an answer of the embedded pair.

python -P lab/scripts/chat_sizes.py after         # writes docs/pictures/chat-after-SIZE.svg and
chat-after-SIZE-answer.svg
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SIZES = ((80, 24), (40, 15))
QUESTION = """Rename `lines` to `rows`.
```python
def read_lines(path, encoding="utf-8"):
    lines = []
    with open(path, encoding=encoding) as file:
        for line in file:
            lines.append(line.rstrip())
    return lines
```"""  # as the embedded pair was taught to be asked


async def pictures(name: str, folder: Path, size: tuple[int, int]) -> None:
    """Both pictures of one size."""
    from localdflash.chat.answer_sources import PrivateDaemon
    from localdflash.chat.sampling_settings import ChatSettings
    from localdflash.server.wanted import Wanted
    from localdflash.tui.base import Start
    from localdflash.tui.chat_app import ChatApp

    options = {"pair": "embedded", "backend": "llama.cpp", "threads": 2, "context": 0, "kv": "f16", "drafter_bits": 8}
    chats = folder / f"{size[0]}.db"
    app = ChatApp(Start(PrivateDaemon(Wanted(options)), folder, chats, ChatSettings(max_tokens=110)))

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)

    def save(what: str) -> None:
        shown = app.export_screenshot(title="localdflash chat")
        (PICTURES / f"chat-{name}-{size[0]}x{size[1]}{what}.svg").write_text(shown)

    async with app.run_test(size=size) as pilot:
        await until(lambda: app.talk.answerer.stage == "ready")
        save("")
        app.ask(QUESTION)
        await until(lambda: app.talk.messages[-1].finish)
        save("-answer")
        await pilot.press("ctrl+q")


def main() -> None:
    """Make all of them, in a home of their own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="what the pictures are called")
    name = parser.parse_args().name
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as home:
        os.environ["LOCALDFLASH_HOME"] = home
        folder = Path(home) / "project"
        folder.mkdir()
        (folder / "add.py").write_text("def add(a, b):\n    return a + b\n")
        for size in SIZES:
            asyncio.run(pictures(name, folder, size))


if __name__ == "__main__":
    main()
