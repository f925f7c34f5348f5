"""Dataset of FIM examples on disk, written completely or not at all; the reading order depends only on a seed.

`tokens.bin` has the ids as uint16 (uint32 in older folders), `index.npy` a RECORD per example.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from localdflash.base.errors import TrainingError

LANGUAGES = ("python", "javascript", "typescript", "tsx", "c", "cpp", "go", "java", "lua", "rust", "chat")
KINDS = ("rest", "line", "node", "span", "open", "chat", "block")  # files store positions in this list: append only
RECORD = np.dtype([("start", "<u8"), ("prompt", "<u4"), ("length", "<u4"), ("language", "u1"), ("kind", "u1")])


@dataclass(frozen=True)
class FimExample:
    """FIM example; training learns only the ids after the prompt."""

    ids: NDArray[np.int64]  # [T]
    prompt: int  # number of prompt ids, the middle marker included
    language: str
    kind: str


@dataclass(frozen=True)
class FimDataset:
    """Dataset files, memory-mapped read-only."""

    tokens: NDArray[np.uint16] | NDArray[np.uint32]
    index: NDArray[np.void]  # RECORD, one per example

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Memory-map a folder that `write` wrote; TrainingError if it is damaged."""
        try:
            index = np.load(folder / "index.npy")
            path, count = folder / "tokens.bin", int(index[-1]["start"] + index[-1]["length"])
            tokens = np.memmap(path, np.uint32 if path.stat().st_size == 4 * count else np.uint16, "r")
            is_complete = index.dtype == RECORD and len(tokens) == count
        except (OSError, ValueError, IndexError, TypeError):
            is_complete = False
        if not is_complete:
            raise TrainingError(f"{folder}: damaged; delete it, and the next run makes it again")
        return cls(tokens, index)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, number: int) -> FimExample:
        row = self.index[number]
        start, length = int(row["start"]), int(row["length"])
        ids = self.tokens[start : start + length].astype(np.int64)
        return FimExample(ids, int(row["prompt"]), LANGUAGES[row["language"]], KINDS[row["kind"]])

    @property
    def kinds(self) -> set[str]:
        """Return the kinds of the examples."""
        return {KINDS[number] for number in np.unique(self.index["kind"])}

    def endless(self, seed: int, position: int) -> Iterator[int]:
        """Yield example indices endlessly, shuffled anew by the seed in each epoch, from number `position` on."""
        epoch, position = divmod(position, len(self))
        while True:
            yield from np.random.default_rng([seed, epoch]).permutation(len(self))[position:].tolist()
            epoch, position = epoch + 1, 0


def write(folder: Path, examples: Iterable[FimExample]) -> int:
    """Write a folder of examples, completely or not at all; return the number of ids."""
    part = folder.with_name(f"{folder.name}.part")
    part.mkdir(parents=True, exist_ok=True)
    rows, total = list[tuple[int, ...]](), 0
    with (part / "tokens.bin").open("wb") as file:
        for example in examples:
            kinds = LANGUAGES.index(example.language), KINDS.index(example.kind)
            rows.append((total, example.prompt, len(example.ids), *kinds))
            example.ids.astype(np.uint16).tofile(file)
            total += len(example.ids)
    np.save(part / "index.npy", np.array(rows, RECORD))
    part.rename(folder)
    return total
