"""Pictures of the chat, made by the chat itself with SmolLM2 135M: the answers are the model's own.

`PYTHONPATH=. python -P lab/scripts/chat_pictures.py FOLDER` writes chat-welcome.svg, chat-models.svg, chat.svg,
chat-accepted.svg and chat-bench.svg. The seed is one of four that were tried: with two others the function came out
wrong.
"""

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path

from localdflash.lab.scripts.support.home import home_with

SIZE = (110, 32)
PAIR = "smollm2-135m"
QUESTIONS = ("Name three sorting algorithms.", "Write a Python function that returns the factorial of a number.")
SEED = 3
SECONDS = 120  # limit of each wait


async def pictures(folder: Path, into: Path) -> None:
    """Go through the chat in a project's folder and save pictures of it."""
    from localdflash.chat.answer_sources import PrivateDaemon
    from localdflash.chat.sampling_settings import ChatSettings
    from localdflash.server.engine_spec import EngineSpec
    from localdflash.tui.app_base import ChatStart
    from localdflash.tui.chat_app import ChatApp

    options = {"pair": PAIR, "backend": "auto", "threads": 2, "context": 0, "kv": "auto", "drafter_bits": 8}
    settings = ChatSettings(seed=SEED, max_tokens=160)
    app = ChatApp(ChatStart(PrivateDaemon(EngineSpec(options)), folder, folder / "chats.db", settings))

    async def until(condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)

    def save(name: str) -> None:
        (into / f"{name}.svg").write_text(app.export_screenshot(title="localdflash chat"), "utf-8")

    async with app.run_test(size=SIZE) as pilot:
        await until(lambda: app.talk.answerer.stage == "ready")
        save("chat-welcome")
        await pilot.press("ctrl+l")
        await until(lambda: "Fits" in app.export_screenshot())
        save("chat-models")
        await pilot.press("escape")
        for question in QUESTIONS:
            app.ask(question)
            await until(lambda: app.talk.messages[-1].finish)
        save("chat")
        await pilot.press("f2", "f3")
        await until(lambda: True)
        save("chat-accepted")
        await pilot.press("f2", "f3", "f5")
        await until(lambda: app.export_screenshot().count("4&#160;of&#160;4&#160;rounds") == 2)
        save("chat-bench")
        await pilot.press("escape", "ctrl+q")


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description="Take pictures of the chat.")
    parser.add_argument("folder", type=Path, help="where the pictures are written, for example docs/pictures")
    into = parser.parse_args().folder
    into.mkdir(parents=True, exist_ok=True)
    with home_with(PAIR) as home:
        project = home / "project"
        project.mkdir()
        asyncio.run(pictures(project, into))


if __name__ == "__main__":
    main()
