"""Measure the time from a key to its ghost text in a real Neovim, with the plug-in and with built-in inline completion.

`PYTHONPATH=. python -P lab/scripts/nvim_latency.py --json FILE`. A scripted server answers at once. Keys disagree with
the suggestion (`asked_for`) or agree with it (`typed_along`). `served` is `asked_for` through `localdflash lsp`.
Drawing by a terminal is not included.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localdflash.lab import result_file
from localdflash.lab.bench.spread import spread
from localdflash.lab.scripts.editors import fetch, nvim_scene
from localdflash.lab.scripts.editors.nvim_scene import EditorScene
from localdflash.lab.scripts.support import bench_daemon, instant_engine

KEYS = 200
LINE = "".join(chr(ord("a") + number % 26) for number in range(KEYS + 10)) + "\n"
CONTINUATIONS = ["x" * (number + 1) + f" = {number}\n" for number in range(KEYS)]
BUILT_IN = (
    "vim.lsp.config('localdflash', {settings}); vim.lsp.enable('localdflash'); vim.lsp.inline_completion.enable()"
)
PROBE = """
times, began = {}, nil
vim.on_key(function(_, typed) if typed ~= '' then began = vim.uv.hrtime() end end)
local set, name = vim.api.nvim_buf_set_extmark, ...
vim.api.nvim_buf_set_extmark = function(buf, namespace, row, column, details)
  local result = set(buf, namespace, row, column, details)
  local ours = namespace == vim.api.nvim_get_namespaces()[name]
  if began and ours and details.virt_text and details.virt_text[1][1] == expected then
    times[#times + 1], began = (vim.uv.hrtime() - began) / 1e6, nil
  end
  return result
end
"""


@contextmanager
def running_server(texts: list[str]) -> Iterator[list[str]]:
    """Yield the command of a language server whose engine completes these texts."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number:04}.txt" for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_text(text, encoding="utf-8")
        with bench_daemon.running(*instant_engine.COMMAND, *map(str, files)):
            yield [sys.executable, "-P", "-c", bench_daemon.PROGRAM, "lsp"]


def type_suggested(scene: EditorScene) -> None:
    """Type the suggested text."""
    for number, key in enumerate(LINE[:KEYS]):
        press(scene, key, LINE[number + 1 : -1])


def type_disagreeing(scene: EditorScene) -> None:
    """Type into a line that has a different continuation after every key."""
    for number in range(KEYS):
        press(scene, "x", f" = {number}")


def measure_served(nvim: Path) -> dict[str, float]:
    """Measure `type_disagreeing` with the real server, which suggests nothing in an empty document."""
    head = "a line above, as in any file\n"
    with (
        running_server([head + text for text in CONTINUATIONS]) as command,
        tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as folder,
        nvim_scene.scene(nvim, Path(folder), cmd=command) as scene,
    ):
        scene.open("keys.txt", head)
        scene.editor.keys("Go")
        scene.editor.lua(PROBE, "localdflash")
        type_disagreeing(scene)
        return summary(scene.editor.lua("return times"))


def press(scene: EditorScene, key: str, ghost: str) -> None:
    """Press a key and wait for its ghost text."""
    count = scene.editor.lua("expected = ...; return #times", ghost)
    scene.editor.keys(key)
    scene.editor.until(lambda: scene.editor.lua("return #times") > count, "ghost text")


def measure(nvim: Path, type_all: Callable[[EditorScene], None], setup: str = nvim_scene.SETUP) -> dict[str, float]:
    """Type with `type_all` in a new Neovim with the scripted server; return the summary of the milliseconds."""
    texts = [LINE] if type_all is type_suggested else CONTINUATIONS
    with (
        tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as folder,
        nvim_scene.scene(nvim, Path(folder), *texts, setup=setup) as scene,
    ):
        scene.open("keys.txt")
        scene.editor.keys("i")
        scene.editor.lua(PROBE, "nvim.lsp.inline_completion" if setup == BUILT_IN else "localdflash")
        type_all(scene)
        return summary(scene.editor.lua("return times"))


def summary(times: list[float]) -> dict[str, float]:
    """Return the summary of the times."""
    return {"keys": len(times), **spread(times)}


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    nvim = fetch.fetch_program("neovim")
    times = {
        "asked_for": measure(nvim, type_disagreeing),
        "served": measure_served(nvim),
        "typed_along": measure(nvim, type_suggested),
        "built_in": measure(nvim, type_disagreeing, BUILT_IN),
    }
    result = {"neovim": ".".join(map(str, fetch.version(nvim))), "key_to_ghost_ms": times}
    result_file.write(given.json, result)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
