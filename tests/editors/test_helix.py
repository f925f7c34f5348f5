"""Helix in a terminal with `localdflash lsp`: the text that its completion menu shows and inserts."""

import json
import sys
from pathlib import Path

import pytest

from localdflash.lab.scripts.support.terminal import Terminal
from tests.editors.conftest import installed
from tests.support import daemons

pytestmark = pytest.mark.editors

SECONDS = 20.0
LANGUAGES = """
[language-server.localdflash]
command = {command}
args = {arguments}

[[language]]
name = "python"
language-servers = ["localdflash"]
"""
KNOWN = """class Box:
    def update(self, *args, **kwargs):
        self.__dict__.update(*args, **kwargs)
        self.price = f'$1 ${self.price}'
        return self


print(Box)
"""
BODY = KNOWN.partition("kwargs):\n")[2].partition("\n\n")[0]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_several_lines_are_inserted_unmodified(tmp_path: Path, end: str) -> None:
    file, config = tmp_path / "project" / "edited.py", tmp_path / "config" / "helix"
    (tmp_path / "project" / ".git").mkdir(parents=True)
    config.mkdir(parents=True)
    gap = KNOWN.replace(BODY, "    ").replace("\n", end).encode()
    file.write_bytes(gap)
    program, *arguments = [sys.executable, "-P", "-c", daemons.PROGRAM, "lsp"]
    languages = LANGUAGES.format(command=json.dumps(program), arguments=json.dumps(arguments))
    (config / "languages.toml").write_text(languages, "utf-8")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_CACHE_HOME": str(tmp_path)}
    with Terminal.start([str(installed("helix")), file.name], env=env, cwd=str(file.parent)) as helix:
        written = helix.wait_written  # its screen has sequences that pyte does not know
        written("NOR", 0)
        helix.type("3GA")
        begun = len(helix.raw)

        def is_offered() -> bool:
            helix.press("ctrl+x")
            helix.watch(0.5)
            return "__dict__" in helix.written(begun)

        daemons.until(is_offered, SECONDS)
        begun = len(helix.raw)
        helix.press("tab")
        written("return", begun)
        begun = len(helix.raw)
        helix.press("enter", "escape")
        written("NOR", begun)
        for keys, text in ((":w\r", KNOWN.replace("\n", end).encode()), ("u:w\r", gap)):
            helix.type(keys)
            helix.settle()
            assert file.read_bytes() == text
