"""Adapters: products, attention and loss against plain torch; training that resumes exactly."""

import copy
import json
import signal
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.base.errors import TrainingError
from localdflash.lab.train import adapter_data, adapter_training
from localdflash.lab.train.adapter import AdaptedEmbedding, AdaptedLinear, Adapter
from localdflash.lab.train.adapter_attention import attend_within
from localdflash.lab.train.adapter_data import FimDataset, FimExample
from localdflash.lab.train.adapter_pass import CHUNK_ROWS, Pass, weighted_loss
from localdflash.lab.train.adapter_stages import AdapterWork, make_examples
from localdflash.lab.train.adapter_training import AdapterRun
from localdflash.lab.train.loop import initialise
from tests.support.reports import RecordedReport
from tests.support.tiny_adapter import SCHEDULE, TINY, numbers, tiny_adapter, tiny_examples

pytestmark = pytest.mark.usefixtures("one_thread")
TOKENS = (3, 5, 16)


def test_product_and_gradients_equal_those_of_the_merged_matrix() -> None:
    torch.manual_seed(1)
    linear = AdaptedLinear(torch.randn(12, 8), 3, torch.float32)
    noisy([linear.up])
    linear.merge()
    x, back = torch.randn(2, 5, 8, requires_grad=True), torch.randn(2, 5, 12)
    found = linear(x)
    plain = F.linear(x, linear.weight) + (x @ linear.down.T) @ linear.up.T
    torch.testing.assert_close(found, plain)
    inputs = [x, linear.down, linear.up]
    for one, other in zip(*(torch.autograd.grad(out, inputs, back) for out in (found, plain)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_decoder_with_adapters_equals_the_merged_decoder() -> None:
    torch.manual_seed(0)
    model = Decoder(TINY).requires_grad_(False)
    initialise(model)
    plain = copy.deepcopy(model)
    adapter = Adapter(model, 2, TOKENS, torch.float32)
    noisy(p for _, p in adapter.parameters())
    adapter.merge()
    state = plain.state_dict()
    for name, linear in adapter.linears.items():
        state[f"{name}.weight"] = linear.merged()
    state["embed_tokens.weight"] = state["lm_head.weight"] = adapter.embedding.merged()
    plain.load_state_dict(state)
    ids, positions = torch.tensor([[3, 7, 16, 2, 5, 11]]), torch.arange(6)
    found, _ = model(ids, positions, causal)
    expected, _ = plain(ids, positions, causal)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found @ adapter.embedding.head.T, plain.logits(expected))


@pytest.mark.parametrize("lengths", [[1], [8], [20, 1, 13], [128, 300, 129]])
def test_packed_attention_equals_separate_attention(lengths: list[int]) -> None:
    torch.manual_seed(0)
    ours = [torch.randn(1, heads, sum(lengths), 16, requires_grad=True) for heads in (6, 2, 2)]
    back = torch.randn(1, 6, sum(lengths), 16)
    found = attend_within(lengths, torch.device("cpu"))(0, *ours)
    parts = zip(*(torch.split(each, lengths, 2) for each in ours), strict=True)
    expected = torch.cat(
        [F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) for q, k, v in parts], 2
    )
    torch.testing.assert_close(found, expected)
    for one, other in zip(*(torch.autograd.grad(out, ours, back) for out in (found, expected)), strict=True):
        torch.testing.assert_close(one, other)


def test_chunked_loss_and_gradients_equal_those_of_the_whole_head() -> None:
    torch.manual_seed(0)
    count = CHUNK_ROWS + 30
    embedding = AdaptedEmbedding(torch.randn(40, 8), (2, 5, 7), torch.float32)
    noisy([embedding.rows])
    embedding.merge()
    hidden = torch.randn(count, 8, requires_grad=True)
    labels, weights = torch.randint(0, 40, (count,)), torch.rand(count)
    found = weighted_loss(hidden, labels, weights, embedding)

    logits = hidden @ embedding.weight.index_copy(0, torch.tensor((2, 5, 7)), embedding.rows).T
    losses = F.cross_entropy(logits, labels, reduction="none")
    total = (losses * weights).sum()
    torch.testing.assert_close(found.total, total)
    torch.testing.assert_close(found.losses, losses.detach())
    assert torch.equal(found.is_exact, logits.argmax(-1) == labels)
    gradients = (torch.autograd.grad(3 * each, [hidden, embedding.rows]) for each in (found.total, total))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def noisy(parameters: Iterable[torch.Tensor]) -> None:
    """Add noise to the parameters, as after training."""
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn(parameter.shape) * 0.1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run torch on one thread, which is faster for tiny matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[FimDataset, FimDataset]:
    folder = tmp_path_factory.mktemp("examples")
    return tiny_examples(folder / "train", 60), tiny_examples(folder / "held_out", 9)


def test_all_tensors_of_a_pass_are_on_the_device_of_the_weights() -> None:
    model = Decoder(TINY).to("meta")  # no numbers; an operation on tensors of different devices fails
    adapter = Adapter(model, 4, TOKENS, torch.bfloat16)
    adapter.merge()
    batch = Pass.of(EXAMPLES, "meta")
    hidden, _ = model(batch.ids[None], batch.positions[None], attend_within(batch.lengths, batch.ids.device))
    loss = weighted_loss(hidden[0, batch.label_rows], batch.labels, batch.weights, adapter.embedding)
    parameters = dict(adapter.parameters())
    gradients = torch.autograd.grad(loss.total / 2, list(parameters.values()))
    assert [(x.shape, x.is_meta) for x in gradients] == [(x.shape, True) for x in parameters.values()]


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.nightly
def test_training_reduces_the_loss(data: tuple[FimDataset, FimDataset], tmp_path: Path) -> None:
    run = AdapterRun(tiny_adapter(), *data, tmp_path, replace(SCHEDULE, tokens=6000, learning_rate=2e-2))
    before, reports = run.measure(), RecordedReport()
    run.train(reports)
    after = run.measure()
    assert after["held_out"] < 0.6 * before["held_out"]
    assert set(after) == {"held_out", "exact", "loss_python", "exact_python", "loss_chat"}
    assert (tmp_path / "training.png").stat().st_size > 1000
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows[0]["held_out"] == pytest.approx(before["held_out"], abs=1e-4)
    assert rows[-1]["tokens"] == run.tokens >= 6000
    assert reports.shares == sorted(reports.shares)


def test_a_killed_run_continues_with_the_same_numbers(
    data: tuple[FimDataset, FimDataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = AdapterRun(tiny_adapter(), *data, tmp_path / "whole", SCHEDULE)
    whole.train(RecordedReport())

    class Killed(BaseException):
        pass

    def fall(run: AdapterRun, values: dict[str, float]) -> None:
        log(run, values)
        if run.step == 5:
            run.save()
        if run.step == 8:  # what came after the checkpoint is lost
            raise Killed

    log = AdapterRun._log

    with monkeypatch.context() as patch:
        patch.setattr(AdapterRun, "_log", fall)
        patch.setattr(adapter_training, "draw_adapter_training", lambda *_: None)
        with pytest.raises(Killed):
            AdapterRun(tiny_adapter(), *data, tmp_path / "parts", SCHEDULE).train(RecordedReport())
    with (tmp_path / "parts" / "log.jsonl").open("a") as log_file:
        log_file.write('{"step": 8, "tok')
    torch.manual_seed(99)
    again = AdapterRun(tiny_adapter(), *data, tmp_path / "parts", SCHEDULE)
    assert again.step == 5
    again.train(RecordedReport())
    assert (again.step, again.position, again.tokens) == (whole.step, whole.position, whole.tokens)
    for one, other in zip(numbers(again), numbers(whole), strict=True):
        assert torch.equal(one, other)
    assert steps(tmp_path / "parts") == steps(tmp_path / "whole")


def test_ctrl_c_within_an_update_waits_until_it_is_complete(
    data: tuple[FimDataset, FimDataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_training, "draw_adapter_training", lambda *_: None)
    whole = AdapterRun(tiny_adapter(), *data, tmp_path / "whole", SCHEDULE)
    whole.train(RecordedReport())
    stopped = AdapterRun(tiny_adapter(), *data, tmp_path / "parts", SCHEDULE)
    merge = stopped.adapter.merge

    def interrupted() -> None:
        if stopped.step == 4:
            signal.raise_signal(signal.SIGINT)
        merge()

    monkeypatch.setattr(stopped.adapter, "merge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stopped.train(RecordedReport())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = AdapterRun(tiny_adapter(), *data, tmp_path / "parts", SCHEDULE)
    again.train(RecordedReport())
    assert (again.step, again.position, again.tokens) == (whole.step, whole.position, whole.tokens)
    for one, other in zip(numbers(again), numbers(whole), strict=True):
        assert torch.equal(one, other)


EXAMPLES = [
    FimExample(np.array([15, 14, 7, 16, 49_000, 0]), 4, "python", "rest"),
    FimExample(np.array([1, 2, 3]), 2, "chat", "chat"),
]


def test_answers_are_not_ignored_if_the_examples_exist(tmp_path: Path) -> None:
    for kinds, works in ((EXAMPLES[:1], False), (EXAMPLES, True)):
        folder = tmp_path / str(works)
        for name in ("train", "held_out"):
            adapter_data.write(folder / "examples" / name, kinds)
        work = AdapterWork(folder, tmp_path / "target.gguf", 2, answers=tmp_path)
        with nullcontext() if works else pytest.raises(TrainingError, match="without --answers; use another folder"):
            make_examples(work, 1000, 0, RecordedReport())


def test_an_interrupted_write_leaves_no_dataset(tmp_path: Path) -> None:
    def broken() -> object:
        yield EXAMPLES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapter_data.write(tmp_path / "train", broken())  # type: ignore[arg-type]
    assert not (tmp_path / "train").exists()
    adapter_data.write(tmp_path / "train", EXAMPLES)
    written = FimDataset.load(tmp_path / "train")
    assert [written[number].ids.tolist() for number in range(2)] == [example.ids.tolist() for example in EXAMPLES]
    wide = np.fromfile(tmp_path / "train" / "tokens.bin", np.uint16).astype(np.uint32)
    wide.tofile(tmp_path / "train" / "tokens.bin")  # as in older folders
    assert FimDataset.load(tmp_path / "train")[0].ids.tolist() == EXAMPLES[0].ids.tolist()
