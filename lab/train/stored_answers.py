"""Stored answers of a target, with the hidden-state features that a drafter reads: four append-only files.

`tokens.bin`: uint32 ids of prompts with their answers. `taps.bin`: a float16 row of features for each id (zeros for the
last id). `likely.bin`: the target's likeliest ids for each position (zeros in a prompt). `index.bin`: one record per
answer, written last; rows without a record, left by a crash, are cut off. `target.json`: target, taps, hidden size.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from localdflash.base.errors import TrainingError

RECORD = np.dtype(
    [
        ("start", "<u8"),  # first row of its ids and features
        ("prompt", "<u4"),  # ids of the prompt
        ("length", "<u4"),  # ids of prompt and answer
        ("number", "<u4"),  # of the prompt in its file
        ("kind", "u1"),  # position in training_prompts.KINDS
        ("held_out", "u1"),
        ("ended", "u1"),  # position in ENDINGS
        ("", "u1"),
    ]
)
ENDINGS = ("end", "limit", "repeats")  # an end token, the maximum length, a repetition
LIKELY_COUNT = 16  # likeliest ids stored for each position
LIKELY = np.dtype([("id", "<u4"), ("share", "<f2")])  # share: probability among the stored ids
ROW_FILES = ("tokens.bin", "taps.bin", "likely.bin")  # a row for each id


@dataclass(frozen=True)
class StoredAnswers:
    """Stored answers, memory-mapped read-only, up to the last complete answer."""

    tokens: NDArray[np.uint32]  # [rows]
    taps: NDArray[np.float16]  # features [rows, width]
    likely: NDArray[np.void]  # LIKELY [rows, LIKELY_COUNT]
    index: NDArray[np.void]  # RECORD, one per answer
    about: Mapping[str, object]  # content of target.json

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Memory-map the answers; TrainingError if there are none yet or a file is damaged."""
        about = read_about(folder)
        index = np.fromfile(folder / "index.bin", RECORD)
        if not len(index):
            raise TrainingError(f"{folder}: no answers yet")
        rows, width = _count_rows(index), width_of(about)
        try:
            tokens = np.memmap(folder / "tokens.bin", np.uint32, "r", shape=(rows,))
            taps = np.memmap(folder / "taps.bin", np.float16, "r", shape=(rows, width))
            likely_ids = np.memmap(folder / "likely.bin", LIKELY, "r", shape=(rows, LIKELY_COUNT))
        except (OSError, ValueError) as error:
            raise TrainingError(f"{folder}: shorter than its index says ({error}); move the folder away") from None
        return cls(tokens, taps, likely_ids, index, about)

    def count_answer_tokens(self) -> int:
        """Return the number of answer ids."""
        return int((self.index["length"].astype(np.int64) - self.index["prompt"]).sum())


class AnswerWriter:
    """Writer of complete answers, one per folder; `flush` makes them durable. `about` is written to target.json."""

    def __init__(self, folder: Path, about: Mapping[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / "lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise TrainingError(f"{folder}: another process is writing answers here") from None
        self._files: list[BinaryIO] = []
        try:
            self._open(folder, about)
        except BaseException:
            self._release()
            raise

    def _open(self, folder: Path, about: Mapping[str, object]) -> None:
        described = folder / "target.json"
        if not described.exists():
            described.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        elif read_about(folder) != json.loads(json.dumps(about)):
            raise TrainingError(f"{folder} holds answers of another target or with other settings; move it away")
        self._files += [(folder / name).open("ab") for name in (*ROW_FILES, "index.bin")]
        tokens, taps, likely_ids, index = self._files
        self._width = width_of(about)
        self._records: list[tuple[int, ...]] = []
        index.truncate(index.tell() // RECORD.itemsize * RECORD.itemsize)
        self.stored = np.fromfile(folder / "index.bin", RECORD)
        self._rows = _count_rows(self.stored) if len(self.stored) else 0
        for file, size in ((tokens, 4), (taps, 2 * self._width), (likely_ids, LIKELY_COUNT * LIKELY.itemsize)):
            if file.tell() < self._rows * size:
                raise TrainingError(f"{file.name}: shorter than its index says; move {folder} away")
            file.truncate(self._rows * size)

    def add(
        self, record: Mapping[str, int], ids: NDArray[np.uint32], taps: NDArray[np.float16], likely: NDArray[np.void]
    ) -> None:
        """Append an answer: ids [T] with the prompt, features [T - 1, width], LIKELY [A, LIKELY_COUNT] of its A ids.

        `record` has the fields number, kind, held_out and ended.
        """
        assert taps.shape == (len(ids) - 1, self._width)
        assert taps.dtype == np.float16
        prompt = len(ids) - len(likely)
        likely_ids = np.zeros((len(ids), LIKELY_COUNT), LIKELY)
        likely_ids[prompt:] = likely
        fields = tuple(record[name] for name in ("number", "kind", "held_out", "ended"))
        with _disk_errors(self._files[0]):
            ids.astype("<u4").tofile(self._files[0])
            taps.tofile(self._files[1])
            np.zeros(self._width, np.float16).tofile(self._files[1])
            likely_ids.tofile(self._files[2])
        self._records.append((self._rows, prompt, len(ids), *fields, 0))
        self._rows += len(ids)

    def flush(self) -> None:
        """Write all added answers to disk, with fsync."""
        if not self._records:
            return
        *rows, index = self._files
        with _disk_errors(index):
            for file in rows:
                _sync(file)
            np.array(self._records, RECORD).tofile(index)
            _sync(index)
        self._records.clear()

    def close(self) -> None:
        """Flush, close the files, and release the folder for another writer."""
        try:
            self.flush()
        finally:
            self._release()

    def _release(self) -> None:
        for file in self._files:
            file.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.close()


@contextmanager
def _disk_errors(file: BinaryIO) -> Iterator[None]:
    """Convert an OSError, such as a full disk, into a TrainingError; flushed answers stay."""
    try:
        yield
    except OSError as error:
        raise TrainingError(f"{file.name}: cannot be written: {error}; earlier answers are safe") from None


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def find_likeliest(logits: Tensor) -> NDArray[np.void]:
    """Return the likeliest ids of logits [N, vocabulary] and their shares among themselves: LIKELY [N, LIKELY_COUNT].

    Soft labels need a tenth of the tokens that hard labels need (arXiv 1503.02531, 2310.08461).
    """
    best = torch.topk(logits, min(LIKELY_COUNT, logits.shape[-1]))
    found = np.zeros((len(logits), LIKELY_COUNT), LIKELY)
    found["id"][:, : best.indices.shape[-1]] = best.indices.cpu().numpy()
    found["share"][:, : best.indices.shape[-1]] = best.values.softmax(-1).cpu().numpy()
    return found


def read_about(folder: Path) -> dict[str, object]:
    """Return the content of `target.json`; TrainingError if it is missing or malformed."""
    path = folder / "target.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        width_of(about)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TrainingError(f"{path}: cannot be read ({error}); let the target answer again") from None
    return dict(about)


def width_of(about: Mapping[str, object]) -> int:
    """Return the number of feature columns; TypeError or KeyError if target.json is malformed."""
    taps, hidden = about["taps"], about["hidden_size"]
    if not isinstance(taps, list | tuple) or not isinstance(hidden, int):
        raise TypeError("taps and hidden_size are missing")
    return len(taps) * hidden


def _count_rows(index: NDArray[np.void]) -> int:
    return int(index[-1]["start"]) + int(index[-1]["length"])
