"""Training on stored features: batches, forward pass compared with serving, loss and loop."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock

from localdflash.backends.reference import dflash_files
from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import OutOfMemory, TrainingError, UsageError
from localdflash.lab.train import drafter_setup, drafter_stages, short_vocabulary
from localdflash.lab.train.batched_answers import CONTEXT
from localdflash.lab.train.draft_blocks import NO_TOKEN, NOT_IN_SHORT, Blocks, BlockSource
from localdflash.lab.train.drafter_pass import FrozenTarget, logits_of, start_from, weighted_loss
from localdflash.lab.train.drafter_run import Schedule, StoredAnswersRun, export_drafter
from localdflash.lab.train.drafter_setup import DrafterOptions
from localdflash.lab.train.drafter_stages import DrafterWork
from localdflash.lab.train.drafter_training import Batch, block_logits
from localdflash.lab.train.loop import initialise
from localdflash.lab.train.stored_answers import LIKELY, LIKELY_COUNT, AnswerWriter, StoredAnswers, find_likeliest
from localdflash.lab.train.training_needs import TrainingNeeds, needs
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.fingerprint import fingerprint_of
from localdflash.models.weights.gguf import read_header
from tests.support.reports import RecordedReport

TAPS = (1, 3, 4)
QUICK = Schedule(sequences=2, anchors=6, warm_up=2, save_seconds=1e9, measure_seconds=1e9, measured=2)


@pytest.fixture(scope="module")
def target(tiny_pair: Path) -> Decoder:
    return load_decoder(tiny_pair / "target.gguf")


@pytest.fixture(scope="module")
def folder(target: Decoder, tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write twelve kept answers of the tiny target, every fourth held out; ids below 200."""
    folder = tmp_path_factory.mktemp("kept")
    generator = torch.Generator().manual_seed(0)
    about = {"sha256": "", "taps": list(TAPS), "hidden_size": target.config.hidden_size}
    with AnswerWriter(folder / "answers", about) as writer:
        for number in range(12):
            ids = torch.randint(0, 200, (1, 30 + number), generator=generator)
            with torch.inference_mode():
                hidden, taps = target(ids[:, :-1], torch.arange(ids.shape[1] - 1), causal, TAPS)
            record = {"number": number, "kind": number % 7, "held_out": int(number % 4 == 3), "ended": 0}
            likely_ids = find_likeliest(target.logits(hidden[0, 9:]))
            writer.add(record, ids[0].numpy().astype(np.uint32), torch.cat(taps, -1)[0].half().numpy(), likely_ids)
    return folder


def source_of(folder: Path, drafts: int = 7) -> BlockSource:
    return BlockSource(StoredAnswers.load(folder / "answers"), drafts, np.arange(0, 512, 2), 1024)


def test_held_out_answers_are_not_trained_on(folder: Path) -> None:
    source = source_of(folder)
    assert source.held_out.tolist() == [3, 7, 11]
    held_out = {source.batch([(n, np.array([20]))]).taps.float().sum().item() for n in (3, 7, 11)}
    stream = source.endless(1, 100, np.random.default_rng(0))
    for blocks in (next(stream) for _ in range(30)):
        assert blocks.taps[:20].float().sum().item() not in held_out
        assert (blocks.anchors.diff() > 0).all()
        assert blocks.anchors.shape[1] == len(blocks.taps) - 8  # all of them: from 9 to the last anchor


@pytest.mark.parametrize(("layers", "from_anchor"), [(1, True), (2, False)])
def test_the_training_pass_equals_the_serving_pass(
    layers: int, from_anchor: bool, target: Decoder, folder: Path, tiny_pair: Path
) -> None:
    path = tiny_pair / "target.gguf"
    config = DFlashConfig(replace(target.config, num_hidden_layers=layers), 8, target.config.vocab_size - 1, TAPS)
    config = replace(config, from_anchor=from_anchor)
    torch.manual_seed(2)
    drafter = DFlash(config).eval().requires_grad_(False)
    initialise(drafter)
    source, short = source_of(folder, drafts=config.drafts), torch.arange(0, 512, 2)
    anchors = np.array([9, 10, 17, 25])
    blocks = source.batch([(2, anchors), (4, anchors[:2]), (0, anchors[1:])])
    sizes = torch.rand(blocks.taps.shape[1]) + 0.5
    row = source.stored.index[2]
    ids = source.stored.tokens[int(row["start"]) : int(row["start"]) + int(row["length"])].astype(np.int64)
    batch = Batch(torch.from_numpy(ids)[None], torch.from_numpy(anchors)[None], torch.full((1, 4, 8), -100))
    with torch.inference_mode():
        expected = block_logits(drafter, target, batch)[0, :, config.first_slot :, short]
        drafter.fc.weight.mul_(sizes)  # what an export folds back
        found = logits_of(drafter, FrozenTarget(path, short), blocks, sizes)
        alone = logits_of(drafter, FrozenTarget(path, short), source.batch([(0, anchors[1:])]), sizes)
    assert found.shape == (3, 4, config.drafts, 256)
    assert (blocks.labels[1, 2:] == NO_TOKEN).all()
    torch.testing.assert_close(found[2, :3], alone[0])
    assert (found[0] - expected).abs().max() < 0.02 * expected.abs().max()  # the taps went through float16


def test_a_drafter_starts_from_the_targets_last_blocks(target: Decoder, tiny_pair: Path) -> None:
    frozen = FrozenTarget(tiny_pair / "target.gguf", torch.arange(10))
    assert (frozen.head == target.lm_head.weight[:10]).all()
    config = DFlashConfig(replace(target.config, num_hidden_layers=2), 8, 0, TAPS)
    drafter = start_from(frozen, config, torch.ones(len(TAPS) * target.config.hidden_size))
    for ours, theirs in zip(drafter.layers, target.layers[-2:], strict=True):
        for name, values in theirs.state_dict().items():
            assert (ours.state_dict()[name] == values).all(), name
    assert (drafter.norm.weight < target.norm.weight).all()
    for other in (
        replace(config, causal=True),
        replace(config, window=CONTEXT - 1, sliding=(True, True), causal=False),
    ):
        with pytest.raises(UsageError, match="cannot be trained"):
            start_from(frozen, other, torch.ones(3))
    stretched = replace(config.decoder, rope_factors=(1.0,) * (config.decoder.head_dim // 2))
    for other in (
        replace(config, markov_rank=8),
        replace(config, own_head=True),
        replace(config, softcap=30.0),
        replace(config, decoder=stretched),
    ):
        with pytest.raises(UsageError, match="are not supported in training"):
            start_from(frozen, other, torch.ones(3))


def only_labels(labels: torch.Tensor) -> Blocks:
    """Return blocks for which the target was certain of every label."""
    none = torch.zeros(0)
    shares = torch.nn.functional.one_hot(torch.zeros_like(labels), LIKELY_COUNT).float()
    return Blocks(
        none,
        none,
        none,
        none,
        none,
        labels,
        labels.clamp_min(0).unsqueeze(-1).expand(*labels.shape, LIKELY_COUNT),
        shares,
    )


def test_loss_of_one_block_by_hand() -> None:
    logits = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]])
    labels = only_labels(torch.tensor([[0, 1, NOT_IN_SHORT, NO_TOKEN]]))
    p0, p1 = 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(-1))
    q0, q1 = 0.5 + p0 / 2, 0.5 + p1 / 2
    reached = [q0, q0 * q1, q0 * q1 * 0.5]
    weights = [sum(reached), reached[1] + reached[2]]
    loss, weight = weighted_loss(logits, labels)
    assert weight.item() == pytest.approx(sum(weights), rel=1e-5)
    assert loss.item() == pytest.approx(-weights[0] * math.log(p0) - weights[1] * math.log(p1), rel=1e-5)


def prepared(folder: Path, tiny_pair: Path, into: Path) -> tuple[StoredAnswersRun, BlockSource, RecordedReport]:
    reports = RecordedReport()
    options = DrafterOptions(1, 8, 300)
    return *drafter_setup.prepare(folder, tiny_pair / "target.gguf", into, options, QUICK, reports.say), reports


@pytest.mark.nightly
def test_training_learns_resumes_and_measures(folder: Path, tiny_pair: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    run, source, reports = prepared(folder, tiny_pair, tmp_path)
    assert "300 tokens cover 100.00%" in reports.lines[0]
    assert "9 answers to learn from, 3 held out" in reports.lines[-1]
    stream = source.endless(2, 6, np.random.default_rng(0))
    losses = [run._one_step(stream)["loss"] for _ in range(30)]
    assert sum(losses[-5:]) < sum(losses[:5])
    run.train(source, 0.02, reports)
    resumed, _, later_reports = prepared(folder, tiny_pair, tmp_path)
    assert not any("cover" in line for line in later_reports.lines)  # the short vocabulary is chosen once
    assert (resumed.step, resumed.spent) == (run.step, run.spent)
    for name, values in run.drafter.state_dict().items():
        assert (resumed.drafter.state_dict()[name] == values).all()
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert 1.0 <= logged[-1]["held_out"] <= 8.0
    assert {"held_out_function", "held_out_types"} <= set(logged[-1])
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
    assert reports.shares
    assert "tokens per verify" in reports.lines[-1]


def test_a_resumed_log_has_no_partial_line_and_no_step_twice(folder: Path, tiny_pair: Path, tmp_path: Path) -> None:
    run, source, reports = prepared(folder, tiny_pair, tmp_path)
    run.step = 10
    run.save()
    rows = [json.dumps({"step": step, "loss": 1.0}) for step in (10, 20)]
    (tmp_path / "log.jsonl").write_text("\n".join([rows[0], "\0\0", *rows, '{"step": 20, "lo']))  # as after a power cut
    resumed, source, reports = prepared(folder, tiny_pair, tmp_path)
    resumed._log_measurement(source, reports)
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in logged] == [10, 10, 10]
    assert (tmp_path / "training.png").exists()


def test_a_new_start_does_not_continue_a_run_silently(folder: Path, tiny_pair: Path, tmp_path: Path) -> None:
    run, _, reports = prepared(folder, tiny_pair, tmp_path)
    assert not any("continuing" in line for line in reports.lines)
    run.step = 10
    run.save()
    _, _, reports = prepared(folder, tiny_pair, tmp_path)
    assert f"continuing {tmp_path} from step 10; for a new start, move that folder away" in reports.lines


def test_a_resumed_run_keeps_the_size_of_its_short_vocabulary(folder: Path, tiny_pair: Path, tmp_path: Path) -> None:
    prepared(folder, tiny_pair, tmp_path)
    options = DrafterOptions(1, 8, 200, own_short=True)
    with pytest.raises(TrainingError, match=r"300 tokens, not 200 \(--short\); use another folder"):
        drafter_setup.prepare(folder, tiny_pair / "target.gguf", tmp_path, options, QUICK, print)


def test_the_exported_drafter_proposes_the_trained_tokens(folder: Path, tiny_pair: Path, tmp_path: Path) -> None:
    run, source, _ = prepared(folder, tiny_pair, tmp_path / "run")
    out, path = tmp_path / "out", tiny_pair / "target.gguf"
    found = run.measure(source, 2)
    assert run.tau == found["held_out"] >= 1.0
    export_drafter(run, tmp_path / "run", path, out, 6)
    header, target_header = read_header(out / "drafter.gguf"), read_header(path)
    for key in ("tokens", "merges", "token_type", "eos_token_id", "pre"):
        assert header.metadata[f"tokenizer.ggml.{key}"] == target_header.metadata[f"tokenizer.ggml.{key}"]
    row = source.stored.index[2]
    ids = source.stored.tokens[int(row["start"]) : int(row["start"]) + 26].astype(np.int64)
    batch = Batch(torch.from_numpy(ids)[None], torch.tensor([[20]]), torch.full((1, 1, 8), -100))
    with torch.inference_mode():
        trained = logits_of(run.average, run.frozen, source.batch([(2, np.array([20]))]), run.sizes)[0, 0]
    trained_list = tmp_path / "run" / short_vocabulary.FILE
    short = short_vocabulary.load(trained_list, run.drafter.config.decoder.vocab_size).long()
    for name, error in (("drafter.gguf", 0.05), ("drafter.safetensors", 0.05)):
        drafter = dflash_files.load(out / name)
        assert (drafter.config.window, drafter.config.sliding, drafter.config.causal) == (CONTEXT, (True,), False)
        assert drafter.config.short == tuple(short.tolist())
        fingerprint = drafter.config.trained_for
        assert fingerprint
        assert fingerprint.tau == pytest.approx(run.tau)
        assert replace(fingerprint, tau=0.0) == fingerprint_of(target_header)
        with torch.inference_mode():
            served_logits = block_logits(drafter, load_decoder(path), batch)[0, 0, 1:, short]
        assert (served_logits - trained).abs().max() < error * trained.abs().max()


def test_a_worse_drafter_is_reported(
    folder: Path, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoredAnswersRun, "measure", lambda *_: {"held_out": 2.0})
    monkeypatch.setattr(StoredAnswersRun, "train", lambda run, *_: setattr(run, "tau", 1.5))
    shutil.copytree(folder, tmp_path / "work")
    work = DrafterWork(tmp_path / "work", tiny_pair / "target.gguf", DrafterOptions(1, 8, 300), 1000, 0.01)
    reports = RecordedReport()
    drafter_stages.train(work, QUICK, reports)
    config = config_of_file(work.folder / "drafter.gguf")
    assert config.trained_for
    assert config.trained_for.tau == 1.5  # the worse one, which replaces an older file
    assert reports.lines[-1] == "the drafter got worse (2.000 before, 1.500 now): train on more such prompts"


def test_one_process_at_a_time_trains_in_a_folder(tiny_pair: Path, tmp_path: Path) -> None:
    work = DrafterWork(tmp_path, tiny_pair / "target.gguf", DrafterOptions(1, 8, 300), 1000, 0.01)
    with FileLock(tmp_path / "lock"), pytest.raises(TrainingError, match="another process is training here"):
        drafter_stages.train(work, QUICK, RecordedReport())


GB = 1 << 30
LARGE = DecoderConfig(128256, 4096, 32, 32, 8, 128, 14336)  # 8B


def planned(config: DecoderConfig, size: int, free: int) -> TrainingNeeds:
    return needs(config, size, (1, 2, 3, 4, 5), 1_000_000, 1, 6144, MemoryBudget(free, 400 << 20, "memory"))


@pytest.mark.parametrize(("size", "free", "what"), [(9 * GB, 9 * GB, "answering"), (1 * GB, 5 * GB, "training")])
def test_too_little_memory_or_disk_is_refused_before_the_start(size: int, free: int, what: str) -> None:
    with pytest.raises(OutOfMemory, match=f"{what}: needs .* are free"):
        planned(LARGE, size, free)


ABOUT = {"sha256": "0" * 64, "taps": [1, 3], "hidden_size": 4}


def test_all_tensors_of_a_pass_are_on_the_device_of_the_weights(target: Decoder, folder: Path, tiny_pair: Path) -> None:
    config = DFlashConfig(replace(target.config, num_hidden_layers=1), 8, 5, TAPS, from_anchor=True)
    drafter, source = DFlash(config).to("meta"), source_of(folder, config.drafts)  # meta tensors have no numbers
    frozen = FrozenTarget(tiny_pair / "target.gguf", torch.arange(0, 512, 2), "meta")
    blocks = source.batch([(2, np.array([9, 12])), (4, np.array([20]))], "meta")
    logits = logits_of(drafter, frozen, blocks, torch.ones(blocks.taps.shape[1], device="meta"))
    loss, _ = weighted_loss(logits, blocks)
    (gradient,) = torch.autograd.grad(loss, [drafter.fc.weight])
    assert gradient.is_meta
    assert gradient.shape == drafter.fc.weight.shape


def answer(number: int) -> tuple[dict[str, int], Any, Any, Any]:
    rng = np.random.default_rng(number)
    record = {"number": number, "kind": number % 7, "held_out": number % 2, "ended": 0}
    ids = rng.integers(0, 150_000, 7).astype(np.uint32)
    likely_ids = np.zeros((4, LIKELY_COUNT), LIKELY)
    likely_ids["id"], likely_ids["share"] = rng.integers(0, 150_000, likely_ids.shape), rng.random(likely_ids.shape)
    return record, ids, rng.standard_normal((6, 8)).astype(np.float16), likely_ids


def check(folder: Path, numbers: list[int]) -> None:
    kept = StoredAnswers.load(folder)
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
    assert StoredAnswers.load(tmp_path).count_answer_tokens() == 3 * 4


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
        StoredAnswers.load(tmp_path)
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
