"""Batched answers: from a scripted engine, and from both real engines compared with single-token decoding."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.lab.train import batched_answers, gpu_answers
from localdflash.lab.train.batched_answers import ParallelStep, answer_prompts
from localdflash.lab.train.parallel_cpu import ParallelCpuTarget
from localdflash.lab.train.parallel_target import ParallelTarget
from localdflash.lab.train.questions import Question
from localdflash.lab.train.regenerate import answer
from localdflash.lab.train.stored_answers import ENDINGS, LIKELY, LIKELY_COUNT, AnswerWriter, StoredAnswers
from tests.support.reports import RecordedReport
from tests.support.target_models import WIDE

ABOUT = {"sha256": "", "taps": [0], "hidden_size": 2}
END = 9


class Scripted:
    """Scripted engine: the answer to a prompt that ends in n has n tokens, the last one END."""

    hidden_size, sequences = 2, 3

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}
        self.widest = 0

    def begin(self, slot: int, prompt: Sequence[int]) -> np.ndarray:
        self.slots[slot] = list(prompt[:-1])
        return np.array([[token, 1] for token in prompt[:-1]], np.float32)

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> ParallelStep:
        self.widest = max(self.widest, len(slots))
        for slot, token in zip(slots, tokens, strict=True):
            self.slots[slot].append(token)
        newest = np.array([self._next(self.slots[slot]) for slot in slots])
        likely_ids = np.zeros((len(slots), LIKELY_COUNT), LIKELY)
        likely_ids["id"][:, 0], likely_ids["share"][:, 0] = newest, 1
        return ParallelStep(np.array([[token, 2] for token in tokens], np.float32), newest, likely_ids)

    @staticmethod
    def _next(ids: list[int]) -> int:
        expected, done = ids[2], len(ids) - 3
        return END if done + 1 >= expected else 100 + done

    def close(self) -> None:
        pass


class Reader:
    """Encoder of a prompt: 1, 2 and the number in its text."""

    ends = frozenset({END})
    longest = batched_answers.MAX_QUESTION

    @staticmethod
    def encode(prompt: Question) -> list[int]:
        return [1, 2, int(prompt.text)]


def ask(folder: Path, texts: Sequence[str], tokens: int, engine: Scripted | None = None) -> list[str]:
    prompts = [Question("talk", text, i % 4 == 3, number=i) for i, text in enumerate(texts)]
    reports = RecordedReport()
    reader: Any = Reader()
    with AnswerWriter(folder, ABOUT) as writer:
        answer_prompts(engine or Scripted(), reader, prompts, writer, tokens, reports)
    assert reports.shares == sorted(reports.shares)
    assert all(0 <= share <= 1 for share in reports.shares)
    return reports.lines


def test_every_prompt_is_answered_once_with_its_own_features(tmp_path: Path) -> None:
    lengths = [5, 2, 9, 1, 30, 7, 7, 3]
    engine = Scripted()
    ask(tmp_path, [str(n) for n in lengths], 10**6, engine)
    assert engine.widest == 3
    kept = StoredAnswers.load(tmp_path)
    assert sorted(kept.index["number"].tolist()) == list(range(8))
    for row in kept.index:
        expected = lengths[row["number"]]
        ids = kept.tokens[int(row["start"]) : int(row["start"]) + int(row["length"])].tolist()
        assert ids == [1, 2, expected, *range(100, 100 + expected - 1), END]
        taps = kept.taps[int(row["start"]) : int(row["start"]) + int(row["length"])]
        assert taps[:-1].tolist() == [[1, 1], [2, 1], *([token, 2] for token in ids[2:-1])]
        likely_ids = kept.likely[int(row["start"]) : int(row["start"]) + int(row["length"])]
        assert likely_ids["id"][:, 0].tolist() == [0, 0, 0, *ids[3:]]
        assert likely_ids["share"][:, 0].tolist() == [0, 0, 0] + [1] * expected
        assert ENDINGS[row["ended"]] == "end"
        assert row["held_out"] == (row["number"] % 4 == 3)


def plain(target: Any, prompt: list[int]) -> tuple[list[int], np.ndarray]:
    """Decode 20 tokens one at a time; return ids and features."""
    target.crop(0)
    taps: list[np.ndarray] = []
    for at in range(0, len(prompt) - 1, 16):
        taps.append(np.array(target.extend(prompt[at : min(at + 16, len(prompt) - 1)])))
    ids = list(prompt)
    for _ in range(20):
        verified = target.verify(ids[-1], EMPTY_DRAFT)
        taps.append(np.array(verified.features))
        ids.append(int(verified.logits[0].argmax()))
        target.keep(1)
    return ids, np.concatenate(taps)


def together(target: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[np.ndarray]]:
    """Decode several prompts in a batch, the second half in reused slots."""
    slots = range(len(prompts))
    for slot in slots:
        target.begin(slot, prompts[-1 - slot])
        target.step([slot], [prompts[-1 - slot][-1]])
    ids, taps = [list(prompt) for prompt in prompts], [[target.begin(slot, prompts[slot])] for slot in slots]
    for _ in range(20):
        step = target.step(list(slots), [ids[slot][-1] for slot in slots])
        for slot in slots:
            ids[slot].append(int(step.newest[slot]))
            taps[slot].append(step.taps[slot : slot + 1])
        assert (step.likely["id"][:, 0] == step.newest).all()
    return ids, [np.concatenate(rows) for rows in taps]


PROMPTS = [[1, 2, 3, *range(40, 40 + n)] for n in (0, 1, 17, 30, 90)] + [[5, 4, 3, 2]]


def test_batched_answers_on_the_cpu_engine_are_bit_identical(tiny_pair: Path, cpu_engine: None) -> None:
    from localdflash.backends.cpu.binding import open_target
    from localdflash.backends.cpu.cpu_library import ThreadPool
    from localdflash.backends.cpu.cpu_target import CpuTarget

    path = tiny_pair / "target.gguf"
    target = ParallelCpuTarget(path, len(PROMPTS), 200, (1, 3, 4))
    ids, taps = together(target, PROMPTS)
    target.close()
    alone = CpuTarget(open_target(path), ThreadPool(1), 200, (1, 3, 4))
    for number, prompt in enumerate(PROMPTS):
        expected, rows = plain(alone, prompt)
        assert ids[number] == expected
        assert (taps[number] == rows).all()
    alone.close()


def test_batched_answers_on_llama_cpp_have_the_same_tokens(tiny_pair: Path) -> None:
    path = tiny_pair / "target.gguf"
    target = ParallelTarget(path, len(PROMPTS), 200, (1, 3, 4), 1)
    ids, taps = together(target, PROMPTS)
    target.close()
    alone = LlamaCppTarget(path, 200, 1, (1, 3, 4), WIDE)
    for number, prompt in enumerate(PROMPTS):
        expected, rows = plain(alone, prompt)
        assert ids[number] == expected
        assert np.abs(taps[number] - rows).max() < 1e-3 * np.abs(rows).max()
    alone.close()


@pytest.fixture(scope="module")
def target(tiny_pair: Path) -> Decoder:
    return load_decoder(tiny_pair / "target.gguf")


@torch.inference_mode()
def one_by_one(model: Decoder, prompt: NDArray[np.int64], ends: frozenset[int]) -> list[int]:
    """Decode greedily without a cache."""
    ids: list[int] = prompt.tolist()
    while True:
        hidden, _ = model(torch.tensor([ids]), torch.arange(len(ids)), causal)
        ids.append(int(model.logits(hidden[0, -1]).argmax()))
        if ids[-1] in ends or len(ids) == len(prompt) + 16:
            return ids[len(prompt) :]


def test_batched_answers_stop_at_their_end_tokens(target: Decoder) -> None:
    rng = np.random.default_rng(5)
    given = [rng.integers(0, 300, length) for length in (3, 9, 9, 14, 25)]
    free = answer(target, given, [16] * 5, frozenset())
    ends = frozenset({free[0][2], free[1][0], free[4][7]})
    found = answer(target, given, [16] * 5, ends)
    assert found == [one_by_one(target, prompt, ends) for prompt in given]
    assert len({len(ids) for ids in found}) > 1
    assert len(found[1]) == 1


def test_answers_of_torch_have_the_same_tokens_and_features(
    target: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_answers, "autocast_on", lambda _: nullcontext())  # all in float32
    monkeypatch.setattr(gpu_answers, "READ_SEQUENCES", 2)
    monkeypatch.setattr(batched_answers, "MAX_ANSWER", 16)
    ends = frozenset({answer(target, [np.array([1, 2, 5])], [16], frozenset())[0][4]})
    prompts = [Question("talk", str(number), number == 3, number=number) for number in range(2, 9)]
    reader: Any = Reader()
    monkeypatch.setattr(Reader, "ends", ends)
    about = {"sha256": "", "taps": [1, 3], "hidden_size": target.config.hidden_size}
    for tokens in (20, 10**6):  # the second run answers what the first one did not
        with AnswerWriter(tmp_path, about) as writer:
            gpu_answers.answer_prompts(target, (1, 3), 3, reader, prompts, writer, tokens, RecordedReport())
    stored = StoredAnswers.load(tmp_path)
    assert stored.index["number"].tolist() == list(range(2, 9))
    for row in stored.index:
        where = slice(int(row["start"]), int(row["start"]) + int(row["length"]))
        ids = stored.tokens[where].tolist()
        assert ids[3:] == one_by_one(target, np.array(ids[:3]), ends)
        assert (ENDINGS[row["ended"]] == "end") == (ids[-1] in ends)
        assert stored.likely[where]["id"][3:, 0].tolist() == ids[3:]
        with torch.inference_mode():
            _, taps = target(torch.tensor([ids[:-1]]), torch.arange(len(ids) - 1), causal, (1, 3))
        assert np.allclose(stored.taps[where][:-1], torch.cat(taps, -1)[0], rtol=2e-3, atol=1e-3)


def test_a_generated_answer_ends_at_its_repetition() -> None:
    answer_of = batched_answers.OpenAnswer
    one = answer_of(Question("talk", "", False), 3, [1, 2, 3, *range(20, 31), *[7, 8] * 60])
    one.cut_at_repetition()
    assert one.end_reason(frozenset()) == "repeats"
    assert len(one.ids) == 3 + 11 + 50  # the first multiple of 8 with 48 repeated ids
    other = answer_of(Question("talk", "", False), 3, list(range(200)))
    other.cut_at_repetition()
    assert len(other.ids) == 200
