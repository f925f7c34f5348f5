"""Stored answers, and their recovery after a crash."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.base.errors import TrainingError
from localdflash.lab.train.kept_answers import COUNT, LIKELY, AnswerWriter, KeptAnswers

ABOUT = {"sha256": "0" * 64, "taps": [1, 3], "hidden_size": 4}


def answer(number: int) -> tuple[dict[str, int], Any, Any, Any]:
    rng = np.random.default_rng(number)
    record = {"number": number, "kind": number % 7, "held_out": number % 2, "ended": 0}
    ids = rng.integers(0, 150_000, 7).astype(np.uint32)
    likely_ids = np.zeros((4, COUNT), LIKELY)
    likely_ids["id"], likely_ids["share"] = rng.integers(0, 150_000, likely_ids.shape), rng.random(likely_ids.shape)
    return record, ids, rng.standard_normal((6, 8)).astype(np.float16), likely_ids


def check(folder: Path, numbers: list[int]) -> None:
    kept = KeptAnswers.load(folder)
    assert kept.index["number"].tolist() == numbers
    for row, number in zip(kept.index, numbers, strict=True):
        record, ids, taps, likely_ids = answer(number)
        where = slice(int(row["start"]), int(row["start"]) + int(row["length"]))
        assert (kept.tokens[where] == ids).all()
        assert (kept.taps[where][:-1] == taps).all()
        assert not kept.taps[where][-1].any()
        assert (row["prompt"], row["kind"], row["held_out"]) == (3, record["kind"], record["held_out"])
        assert (kept.likely[where][3:] == likely_ids).all()
        assert not kept.likely[where][:3]["share"].any()


def test_stored_answers_round_trip_and_can_be_extended(tmp_path: Path) -> None:
    with AnswerWriter(tmp_path, ABOUT) as writer:
        assert not len(writer.stored)
        writer.add(*answer(0))
        writer.add(*answer(5))
    with AnswerWriter(tmp_path, ABOUT) as writer:
        assert writer.stored["number"].tolist() == [0, 5]
        writer.add(*answer(2))
    check(tmp_path, [0, 5, 2])
    assert KeptAnswers.load(tmp_path).answer_tokens() == 3 * 4


@pytest.mark.parametrize("file", ["tokens.bin", "taps.bin", "likely.bin", "index.bin"])
def test_partial_rows_of_a_crash_are_cut_off(file: str, tmp_path: Path) -> None:
    with AnswerWriter(tmp_path, ABOUT) as writer:
        writer.add(*answer(0))
    with (tmp_path / file).open("ab") as torn:
        torn.write(b"\xff" * 17)
    with AnswerWriter(tmp_path, ABOUT) as writer:
        writer.add(*answer(1))
    check(tmp_path, [0, 1])


def test_answers_of_another_target_are_refused(tmp_path: Path) -> None:
    AnswerWriter(tmp_path, ABOUT).close()
    for changed in ({"sha256": "1" * 64}, {"taps": [1, 2]}, {"hidden_size": 5}):
        with pytest.raises(TrainingError, match="another target"):
            AnswerWriter(tmp_path, ABOUT | changed)
    AnswerWriter(tmp_path, ABOUT).close()


@pytest.mark.parametrize("name", ["tokens.bin", "taps.bin", "likely.bin"])
def test_truncated_files_are_refused(name: str, tmp_path: Path) -> None:
    with AnswerWriter(tmp_path, ABOUT) as writer:
        writer.add(*answer(0))
    with (tmp_path / name).open("r+b") as file:
        file.truncate(10)
    with pytest.raises(TrainingError, match="shorter than its index says"):
        KeptAnswers.load(tmp_path)
    with pytest.raises(TrainingError, match="shorter than its index says"):
        AnswerWriter(tmp_path, ABOUT)


def test_a_full_disk_keeps_earlier_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = AnswerWriter(tmp_path, ABOUT)
    writer.add(*answer(0))
    writer.flush()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    writer.add(*answer(1))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(TrainingError, match="No space left"):
            writer.flush()
        check(tmp_path, [0])
    writer.close()  # there is room again
    check(tmp_path, [0, 1])
