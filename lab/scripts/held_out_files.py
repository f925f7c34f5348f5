"""Files of packages on which no model was trained, for typing replays: see docs/benchmarks.md, "Completions".

`PYTHONPATH=. python -P lab/scripts/held_out_files.py FOLDER INTO [--turn N]`

FOLDER is that of `train adapter`; its held-out packages are downloaded if need be. Files of each language are chosen in
turn from its packages, the same ones each time, and lie in INTO as in their packages; their paths are printed. Another
turn has other files, fewer of them once a language has no more.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from localdflash.lab.train.adapter_corpus import fetch_archives, read_sources
from localdflash.text.syntax import language_of

COUNTS = {"python": 14, "javascript": 8, "typescript": 8}
MIN_LINES = 40  # of a file


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("into", type=Path)
    parser.add_argument("--turn", type=int, default=0)
    given = parser.parse_args()
    for name, text in chosen(given.folder, given.turn):
        path = given.into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


def chosen(folder: Path, turn: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the files of a turn: name and text."""
    rng, known = random.Random(18), dict[str, dict[str, list[tuple[str, str]]]]()
    for archive in fetch_archives(folder):
        if not archive.held_out:
            continue
        package = archive.path.name.partition("-")[0]
        for name, text in sorted(read_sources(archive).items()):
            if text.count("\n") >= MIN_LINES:
                known.setdefault(language_of(name), {}).setdefault(package, []).append((f"{package}/{name}", text))
    for language, count in COUNTS.items():
        packages = [rng.sample(files, len(files)) for files in known[language].values()]
        max_files = max(map(len, packages))
        in_turn = [files[at] for at in range(max_files) for files in packages if at < len(files)]
        yield from in_turn[turn * count : (turn + 1) * count]


if __name__ == "__main__":
    main()
