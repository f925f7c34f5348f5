"""A picture, vscode.png: VS Code (code-server) with the extension, in which smollm2-135m-code completes.

`PYTHONPATH=. python -P lab/scripts/vscode_picture.py FILE.png` types the head of a function into a file and takes a
picture of the window as soon as a suggestion of the model is shown. `make editors vsix` downloads and builds the
programs that the script needs.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from localdflash.lab.scripts.editors import fetch_vscode
from localdflash.lab.scripts.editors.nvim_scene import PRICES
from localdflash.lab.scripts.editors.vscode import PROGRAM, studio, until
from localdflash.lab.scripts.nvim_picture import BODY, PAIR, TYPED
from localdflash.lab.scripts.support.bench_daemon import ROOT
from localdflash.lab.scripts.support.home import lend_models

EXTENSION = ROOT / "editors" / "vscode" / "localdflash-0.1.0.vsix"


def picture(file: Path) -> str:
    """Save the picture; return the suggestion."""
    tools = fetch_vscode.tools()
    if tools is None or not EXTENSION.is_file():
        sys.exit("VS Code or the extension is missing; run `make editors vsix`")
    with tempfile.TemporaryDirectory() as top, studio(tools, EXTENSION) as code:
        lend_models(code.home, PAIR)
        folder = Path(top) / "project"
        folder.mkdir()
        text = f"{PRICES}{BODY}\n\n"
        (folder / "prices.py").write_text(text, "utf-8")
        try:
            with code.window(folder) as window:
                window.open("prices.py", text.count("\n") + 1)
                until(lambda: "Ready" in window.details() or "Model" in window.details(), window.details)
                window.type(TYPED)
                until(lambda: len(window.ghost().splitlines()) > 2, window.circumstances)
                window.page.screenshot(path=str(file))
                return window.ghost()
        finally:
            subprocess.run([PROGRAM, "serve", "--stop"], env={"LOCALDFLASH_HOME": str(code.home)}, check=False)


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description="Take a picture of a suggestion in VS Code.")
    parser.add_argument("file", type=Path, help="the picture, for example docs/pictures/vscode.png")
    sys.stdout.write(picture(parser.parse_args().file) + "\n")


if __name__ == "__main__":
    main()
