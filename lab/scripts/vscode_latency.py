"""Time from a key to its ghost text in VS Code: `PYTHONPATH=. python -P lab/scripts/vscode_latency.py --json FILE`.

A real VS Code (code-server in a headless Chromium) with our extension, our language server and an engine that answers
at once. Keys are Enter and a line's first letter. A time is from the key's event to the animation frame that finds the
suggestion. VS Code waits for about 50 ms after a key before it asks.
"""

import argparse
import json
import os
import random
import re
import tempfile
import time
from pathlib import Path

from localdflash.lab import result_file
from localdflash.lab.bench.spread import spread
from localdflash.lab.scripts.editors.fetch_vscode import ROOT, tools
from localdflash.lab.scripts.editors.vscode import GHOST, VscodeWindow, studio, until

GAPS = 0.12, 0.25  # seconds from key to key
WATCH = f"""() => {{
    const ghost = {GHOST};
    addEventListener('keydown', (key) => {{
        const before = ghost();
        window.taken = null;
        window.last = key;
        (function look() {{
            const drawn = ghost();
            if (drawn && drawn !== before) window.taken = performance.now() - key.timeStamp;
            else if (window.last === key) requestAnimationFrame(look);
        }})();
    }}, true);
}}"""
NAMES = ("count", "total", "first", "names", "width", "lines", "share", "value", "error", "table")


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=40)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = tools()
    if found is None:
        parser.error("VS Code is missing; run lab/scripts/editors/fetch_vscode.py")
    code = [f"{NAMES[number % 10]}_{number} = measure({number}, unit='ms')" for number in range(given.lines + 1)]
    load = os.getloadavg()[0]
    extension = next((ROOT / "editors" / "vscode").glob("*.vsix"))
    with tempfile.TemporaryDirectory() as folder, studio(found, extension, "\n\n".join(code)) as running:
        (Path(folder) / "typed.py").write_text(code[0])
        with running.window(Path(folder)) as window:
            times = measure(window, code[1:])
    result = {
        "editor": "VS Code (code-server 4.139.1, headless Chromium)",
        "load": round(load, 1),
        "keys": 2 * given.lines,
        "key_to_ghost_ms": {kind: spread(some) for kind, some in times.items()},
    }
    print(json.dumps(result, indent=2))
    result_file.write(given.json, result)


def measure(window: VscodeWindow, code: list[str]) -> dict[str, list[float]]:
    """Return the milliseconds for both kinds of keys, and for all."""
    before = (window.folder / "typed.py").read_text()
    window.open("typed.py")
    window.press("End")
    until(lambda: re.match(r"localdflash\. (Ready|Model)", window.details()), window.details)
    window.page.evaluate(WATCH)

    def taken(key: str) -> float:
        press(key)
        until(lambda: window.page.evaluate("() => window.taken"), lambda: f"no suggestion: {window.details()}")
        return float(window.page.evaluate("() => window.taken"))

    def press(*keys: str) -> None:
        for key in keys:
            window.press(key)
            time.sleep(random.uniform(*GAPS))

    enter, letter = [], []
    for line in code:
        press("Enter", "Escape")  # where the empty line begins, which the engine also knows
        enter.append(taken("Enter"))
        press("Escape")
        letter.append(taken(line[0]))
        press("Tab")
    window.holds("typed.py", "\n\n".join([before, *code]))
    return {"all": enter + letter, "enter": enter, "letter": letter}


if __name__ == "__main__":
    main()
