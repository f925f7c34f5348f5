"""A real VS Code for tests: code-server on this machine's loopback, with its window in a headless Chromium.

`Studio` is the running server with our extension installed; `Studio.window` opens a folder in a fresh browser window.
The text of a document is read from the disk after saving, a suggestion from the elements that paint ghost text.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, sync_playwright

from localdflash.lab.scripts.editors.fetch_vscode import ROOT, Tools
from localdflash.lab.scripts.support import instant_engine

PROGRAM = Path(sys.executable).parent / "localdflash"
PICTURES = Path(os.environ.get("LOCALDFLASH_ARTIFACTS") or ROOT / "build" / "editors")  # screenshots of a test run
SECONDS = 30.0  # limit of each wait; the machine may be busy
SETTINGS: Mapping[str, Any] = {
    "chat.disableAIFeatures": True,
    "editor.acceptSuggestionOnEnter": "off",
    "editor.autoClosingBrackets": "never",
    "editor.autoClosingQuotes": "never",
    "editor.minimap.enabled": False,
    "editor.quickSuggestions": {"other": "off", "comments": "off", "strings": "off"},
    "extensions.ignoreRecommendations": True,
    "files.autoSave": "off",
    "git.enabled": False,
    "localdflash.deadlineMs": 5000,  # a busy machine may take long, and nothing asks again until the next key
    "telemetry.telemetryLevel": "off",
    "window.commandCenter": False,
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.startupEditor": "none",
    "workbench.tips.enabled": False,
}
# Ghost text within the line, then the ghost lines painted below it. Both use non-breaking spaces.
GHOST = """() => {
    const text = (found) => found.textContent.replaceAll('\\u00a0', ' ').replaceAll('\\u200b', '');
    const inline = [...document.querySelectorAll('.view-line [class*=ghost-text-decoration]')].map(text).join('');
    const below = [...document.querySelectorAll('.suggest-preview-text .view-line')].map(text);
    return [inline, ...below].join('\\n');
}"""
REMOVED_TEXT = """() => [...document.querySelectorAll('.editor-instance .view-line span')].filter((found) =>
    getComputedStyle(found).textDecorationLine === 'line-through').map((found) => found.textContent).join('')"""


class VscodeWindow:
    """Window with one folder."""

    def __init__(self, page: Page, folder: Path, data: Path) -> None:
        self.page, self.folder, self._data = page, folder, data

    def open(self, name: str, line: int = 1, column: int = 1) -> None:
        """Open a file of the folder with the cursor at a line and column, both from 1."""
        self.press("Control+p")
        self.pick(f"{name}:{line}:{column}", name)
        self.page.locator(f'.tab.active[data-resource-name="{name}"]').wait_for()
        self.page.locator(".editor-instance .monaco-editor.focused").wait_for()

    def press(self, *keys: str) -> None:
        """Press keys by their Playwright names."""
        for key in keys:
            self.page.keyboard.press(key)

    def type(self, text: str, gap: float = 0.06) -> None:
        """Type as a person does, `gap` seconds from key to key."""
        self.page.keyboard.type(text, delay=gap * 1e3)

    def command(self, title: str) -> None:
        """Run a command from the palette."""
        self.press("F1")
        self.pick(f">{title}", title)

    def ghost(self) -> str:
        """Return the painted suggestion; empty without one."""
        return str(self.page.evaluate(GHOST))

    def removed_text(self) -> str:
        """Return the text that a next edit would remove; empty without one."""
        return str(self.page.evaluate(REMOVED_TEXT))

    def frames(self) -> Callable[[], list[str]]:
        """Record painted suggestions from now on; return a function that returns the distinct ones in order."""
        self.page.evaluate(f"""() => {{
            const ghost = {GHOST}, seen = (window.seen = [ghost()]);
            (function look() {{
                if (seen.at(-1) !== ghost()) seen.push(ghost());
                if (window.seen === seen) requestAnimationFrame(look);
            }})();
        }}""")
        return lambda: [str(ghost) for ghost in self.page.evaluate("() => window.seen")]

    def shows(self, ghost: str) -> None:
        """Wait until exactly this is suggested."""
        until(
            lambda: self.ghost() == ghost, lambda: f"{self.ghost()!r} is shown, not {ghost!r}\n{self.circumstances()}"
        )

    def circumstances(self) -> str:
        """Return facts for a failure message: focus, status item, messages, and ends of logs."""
        focus = self.page.evaluate("() => document.hasFocus() + ' ' + document.activeElement?.className")
        lines = self.page.locator(".editor-instance .view-line").all_text_contents()
        facts = [f"focus: {focus}", f"item: {self.details()}", f"messages: {self.messages()}", *lines]
        for log in sorted(self._data.rglob("logs/**/*localdflash*.log"), key=lambda path: path.stat().st_mtime)[-1:]:
            facts += [f"--- {log.name}", *log.read_text("utf-8").splitlines()[-30:]]
        return "\n".join(facts)

    def holds(self, name: str, text: str) -> None:
        """Save the active document until it has exactly this text."""

        def saved() -> str:
            self.press("Control+s")
            self.page.locator(f'.tab.active[data-resource-name="{name}"]:not(.dirty)').wait_for()
            return (self.folder / name).read_bytes().decode()

        until(lambda: saved() == text, lambda: f"{saved()!r} is there, not {text!r}")

    def status(self) -> str:
        """Return the text of our item in the status bar, without its icon."""
        return (self._item.text_content() or "").strip()

    def details(self) -> str:
        """Return the tooltip of our item."""
        return self._item.locator("a").get_attribute("aria-label") or ""

    def messages(self) -> list[str]:
        """Return the open notifications."""
        return self.page.locator(".notification-toast .notification-list-item-message").all_text_contents()

    def picture(self, name: str) -> None:
        """Take a picture of the window."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=str(PICTURES / f"vscode-{name}.png"))

    @property
    def _item(self) -> Locator:
        return self.page.locator('[id="localdflash.localdflash.localdflash"]')

    def pick(self, text: str, expected: str) -> None:
        """Type into the open quick-input box and accept the expected first entry."""
        box = self.page.locator(".quick-input-widget input.input")
        box.wait_for()
        box.fill(text)
        self.page.locator(".quick-input-list .monaco-list-row.focused", has_text=expected).wait_for()
        self.press("Enter")


class Studio:
    """code-server with the extension, and a browser. `home` is the LOCALDFLASH_HOME of the programs that it starts."""

    def __init__(self, url: str, browser: Browser, data: Path, home: Path) -> None:
        self._url, self._browser, self._data, self.home = url, browser, data, home

    def configure(self, *, restricted: bool = False, **machine: object) -> None:
        """Write the settings that a folder cannot set, without the `localdflash.` before their names.

        `restricted`: windows that are opened from now on do not trust their folders.
        """
        user = {**SETTINGS, "security.workspace.trust.enabled": restricted}
        named = {f"localdflash.{name}": value for name, value in ({"command": str(PROGRAM)} | machine).items()}
        for whose, settings in (("User", user), ("Machine", named)):
            _replace(self._data / whose / "settings.json", json.dumps(settings))

    @contextmanager
    def window(self, folder: Path, **settings: object) -> Iterator[VscodeWindow]:
        """Open a window with a folder; `settings` are the folder's settings."""
        if settings:
            (folder / ".vscode").mkdir(exist_ok=True)
            (folder / ".vscode" / "settings.json").write_text(json.dumps(settings))
        context = self._browser.new_context(viewport={"width": 1100, "height": 620})
        context.set_default_timeout(SECONDS * 1e3)
        page = context.new_page()
        page.goto(f"{self._url}/?folder={folder}")
        try:
            page.locator(".monaco-workbench .part.statusbar").wait_for()
            yield VscodeWindow(page, folder, self._data)
        finally:
            context.close()

    def servers(self) -> list[int]:
        """Return the ids of the processes of `localdflash lsp` with this home."""
        import psutil

        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("LOCALDFLASH_HOME") == str(self.home)
                if ours and process.cmdline()[1:4] and "lsp" in process.cmdline():
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found


def _replace(file: Path, text: str) -> None:
    """Write a watched settings file atomically, since a window that reads a partial file restarts."""
    if file.exists() and file.read_text("utf-8") == text:
        return
    file.parent.mkdir(exist_ok=True, parents=True)
    new = file.with_suffix(".new")
    new.write_text(text, "utf-8")
    new.replace(file)


@contextmanager
def studio(tools: Tools, extension: Path, *texts: str) -> Iterator[Studio]:
    """Yield a Studio whose engine knows these texts, or with the real engine if there are none; clean up at the end."""
    top = Path(tempfile.mkdtemp(prefix="ldf", dir="/tmp"))  # short: a socket's path has about a hundred bytes
    variables = {**os.environ, "HOME": str(top), "LOCALDFLASH_HOME": str(top / "h"), "OMP_NUM_THREADS": "1"}
    data, extensions = top / "data", top / "extensions"
    data.mkdir()
    known = [top / f"{number}.txt" for number, _ in enumerate(texts)]
    for file, text in zip(known, texts, strict=True):
        file.write_text(text, "utf-8")
    folders = ["--user-data-dir", str(data), "--extensions-dir", str(extensions)]
    processes: list[subprocess.Popen[str]] = []

    def begin(*command: str, **more: Any) -> "subprocess.Popen[str]":
        processes.append(subprocess.Popen(command, env=variables, text=True, stdin=subprocess.DEVNULL, **more))
        return processes[-1]

    try:
        if known:
            begin(*instant_engine.COMMAND, *map(str, known))
        install = [*tools.server_command, *folders, "--install-extension", str(extension)]
        subprocess.run(install, env=variables, check=True, capture_output=True)
        flags = ["--auth", "none", "--bind-addr", "127.0.0.1:0", "--disable-telemetry", "--disable-update-check"]
        flags += ["--reconnection-grace-time", "1"]  # seconds a closed window's processes stay
        log = (top / "log").open("w+", encoding="utf-8")
        server = begin(*tools.server_command, *folders, *flags, stdout=log, stderr=subprocess.STDOUT)
        url = _address(server, top / "log")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=str(tools.browser), args=["--no-sandbox"], env={**os.environ, **tools.variables}
            )
            found = Studio(url, browser, data, top / "h")
            found.configure()
            yield found
            browser.close()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(SECONDS)
        log.close()
        shutil.rmtree(top, ignore_errors=True)


def until(condition: Callable[[], object], otherwise: Callable[[], str] = lambda: "it did not happen in time") -> None:
    """Wait for a condition; fail if it does not come true."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.02)


def _address(server: "subprocess.Popen[str]", log: Path) -> str:
    def listening() -> "re.Match[str] | None":
        assert server.poll() is None, log.read_text()
        return re.search(r"listening on (http://[\d.]+:\d+)", log.read_text())

    until(listening, log.read_text)
    found = listening()
    assert found
    return found[1]
