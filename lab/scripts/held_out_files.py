"""Files of packages on which no model was trained, for typing replays: see docs/benchmarks.md, "Completions".

`PYTHONPATH=. python -P lab/scripts/held_out_files.py FOLDER INTO [--turn N]`

FOLDER is the folder of `train adapter`; missing packages are downloaded. The script copies files of each language,
alternating between its packages, into INTO and prints their paths. Each turn N has other files, but always the same
ones, and fewer of them when a language runs out of files.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from localdflash.lab.train.adapter_corpus import fetch_archives, read_sources
from localdflash.text.syntax import language_of

COUNTS = {"python": 14, "javascript": 8, "typescript": 8}
MIN_LINES = 40  # minimum length of a file


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("--turn", type=int, default=0)
    given = parser.parse_args()
    for name, text in choose_files(given.folder, given.turn):
        path = given.into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


def choose_files(folder: Path, turn: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file of a turn."""
    rng, by_language = random.Random(18), dict[str, dict[str, list[tuple[str, str]]]]()
    for archive in fetch_archives(folder):
        if not archive.held_out:
            continue
        package = archive.path.name.partition("-")[0]
        for name, text in sorted(read_sources(archive).items()):
            if text.count("\n") >= MIN_LINES:
                by_language.setdefault(language_of(name), {}).setdefault(package, []).append(
                    (f"{package}/{name}", text)
                )
    for language, count in COUNTS.items():
        packages = [rng.sample(files, len(files)) for files in by_language[language].values()]
        max_files = max(map(len, packages))
        interleaved = [files[i] for i in range(max_files) for files in packages if i < len(files)]
        yield from interleaved[turn * count : (turn + 1) * count]


if __name__ == "__main__":
    main()
