"""Every check over a tiny pair: a sound one passes, and a fault put into it is found and named.

The references stand in for the kernels where the kernels' own numbers do not matter; `test_kernels` has those.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda import assembly
from localdflash.backends.cuda.assembly import CudaSettings, load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import REFERENCES, Op
from localdflash.backends.cuda.proof import calls, operations, stages
from localdflash.backends.cuda.proof.operations import around, using
from localdflash.backends.cuda.proof.tolerance import Unsound
from localdflash.backends.cuda.runner import Runner
from localdflash.models.shapes.decoder_config import DecoderConfig
from tests.support.tiny_models import EXPERTS, SHAPE, write_drafter, write_target

CPU = torch.device("cpu")
IDS = torch.randint(150, (20,), generator=torch.Generator().manual_seed(1)).tolist()
Spoil = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> CudaPair:
    folder = tmp_path_factory.mktemp("tiny")
    target, drafter = write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0))
        return load_pair(target, drafter, CPU, CudaSettings(context=384), REFERENCES)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "TOKENS", 8)
    monkeypatch.setattr(stages, "SAMPLED", 4)
    monkeypatch.setattr(stages, "REPLAYS", 2)
    monkeypatch.setattr(stages, "FAR", 256)  # of a context of 384
    monkeypatch.setattr(stages, "CONTEXT_NEEDED", 320)


def run(pair: CudaPair, *only: str, heard: list[str] | None = None) -> list[str]:
    """Run the checks, or some of them; the names of those that passed."""
    passed = []
    for name, check in stages.stages(pair, IDS, (heard if heard is not None else []).append):
        if not only or name in only:
            check()
            passed.append(name)
    return passed


def spoilt(names: dict[str, Spoil]) -> Callable[[str, Op], Op]:
    """Operations that do something else after what they do."""

    def wrap(name: str, op: Op) -> Op:
        def run(*given: Any, **named: Any) -> None:
            op(*given, **named)
            names[name](calls.bound(getattr(REFERENCES, name), given, named))

        return run if name in names else op

    return wrap


def fault(pair: CudaPair, names: dict[str, Spoil]) -> Any:
    return using(pair.stepper, around(pair.stepper.ops, spoilt(names)))


def add(part: str, value: float) -> Spoil:
    """Change one number, the last one, of what an operation leaves."""

    def spoil(arguments: dict[str, Any]) -> None:
        found: Any = calls.tensors(arguments)[part]
        found.view(-1)[-1] += value

    return spoil


def test_a_sound_pair_passes_every_check_and_is_empty_afterwards(pair: CudaPair) -> None:
    heard: list[str] = []
    assert run(pair, heard=heard) == [
        *("operations", "short prompt", "rows", "prompts", "texts", "sampled texts", "graphs", "long context"),
    ]
    assert pair.ids == []
    assert int(pair.stepper.state.abs().sum()) == 0
    assert {"qkv of layer 0", "attention of layer 2", "head of output", "residual of the drafter's layer 1"} <= {*heard}
    assert "qkv of the drafter's context" in heard
    assert {name.partition(" ")[0] for name in heard} >= {
        *(
            "embed",
            "swiglu",
            "sample",
            "gather_taps",
            "begin",
            "next_tokens",
            "propose",
            "caught_up",
            "lookup",
            "accept",
        )
    }


WRONG = {"embed": "x", "qkv": "cache.v", "head": "out", "sample": "choice", "gather_taps": "sums", "caught_up": "state"}


@pytest.mark.parametrize("operation", WRONG)
def test_one_wrong_value_is_found_where_it_is(operation: str, pair: CudaPair) -> None:
    part = WRONG[operation]
    with (
        fault(pair, {operation: add(part, 1)}),
        pytest.raises(Unsound, match=f"^{operation}.*{part} is not the reference") as e,
    ):
        run(pair, "operations")
    assert e.value.operation.partition(" ")[0] == operation


def test_a_nan_is_found(pair: CudaPair) -> None:
    part = "squares_out"
    with (
        fault(pair, {"residual": add(part, float("nan"))}),
        pytest.raises(Unsound, match=rf"^residual of layer 0: {part} is not the reference's: 1 of \d+ numbers are NaN"),
    ):
        run(pair, "operations")


def test_a_fault_in_a_late_layer_of_the_drafter_is_named(pair: CudaPair) -> None:
    assert pair.stepper.block
    down = pair.stepper.block.weights.layers[1].mlp.down

    def spoil(arguments: dict[str, Any]) -> None:
        if arguments["planes"] is down:
            add("x", 1)(arguments)

    with (
        fault(pair, {"residual": spoil}),
        pytest.raises(Unsound, match=r"^residual of the drafter's layer 1: x is not"),
    ):
        run(pair, "operations")


def test_a_second_run_that_differs_is_found(pair: CudaPair) -> None:
    """By less than any rounding."""
    runs = iter(range(1000))

    def spoil(arguments: dict[str, Any]) -> None:
        add("out", 1e-6 * (next(runs) % 2))(arguments)

    with (
        fault(pair, {"attention": spoil}),
        pytest.raises(Unsound, match=r"^attention of layer 0: two runs on the same numbers differ in out"),
    ):
        run(pair, "operations")


def test_a_head_whose_bits_depend_on_the_row_is_found(pair: CudaPair) -> None:
    def spoil(arguments: dict[str, Any]) -> None:
        if (logits := arguments.get("logits")) is not None:
            logits *= 1 + 1e-6 * torch.arange(16).unsqueeze(1)

    with fault(pair, {"head": spoil}):
        assert run(pair, "operations") == ["operations"], "no rounding would be so small"
        with pytest.raises(Unsound, match=r"^head of output: a row's bits in logits depend on its place"):
            run(pair, "rows")


@pytest.mark.parametrize(("part", "what"), [("a_out", "the keys of layer 1"), ("tap", "the drafter's taps")])
def test_two_tiles_that_leave_other_bits_are_found(part: str, what: str, pair: CudaPair) -> None:
    """By less than any rounding: in the first layer, or where nothing but the drafter reads it."""

    def spoil(arguments: dict[str, Any]) -> None:
        if part == "a_out" and arguments["x"].ndim == 3:
            arguments["a_out"][1, 3] *= 1 + 1e-6
        if part == "tap" and arguments["x"].ndim == 3 and arguments.get("tap"):
            arguments["tap"].ring[5] *= 1 + 1e-6

    with fault(pair, {"residual": spoil}), pytest.raises(Unsound, match=rf"^a prompt in two tiles: {what} "):
        run(pair, "prompts")


def test_a_model_that_is_another_one_is_found(pair: CudaPair) -> None:
    """Where no operation has a reference beside it."""

    def spoil(arguments: dict[str, Any]) -> None:
        arguments["x"] *= -1
        arguments["a_out"] *= -1

    with fault(pair, {"residual": spoil}), pytest.raises(Unsound, match=r"^the short prompt: after token \d+ the"):
        run(pair, "short prompt")


@pytest.fixture
def stepping(pair: CudaPair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str, int], None]], None]]:
    """Has something happen after each step that the runner takes, by way and number."""

    def after(spoil: Callable[[str, int], None]) -> None:
        real, numbers = pair.runner.step, iter(range(10_000))

        def step(way: Any, greedy: bool, length: int) -> Any:
            arrival = real(way, greedy, length)
            spoil(way, next(numbers))
            return arrival

        monkeypatch.setattr(pair.runner, "step", step)

    yield after
    pair.set_documents([])
    pair.forget()


def test_a_graph_that_replays_other_numbers_is_found(pair: CudaPair, stepping: Any) -> None:
    def spoil(way: str, number: int) -> None:
        if way == "lookup":
            pair.stepper.stack.buffers.hidden[3, 5] += 2**-20

    stepping(spoil)
    with pytest.raises(Unsound, match=r"^the graph of lookup: step 1 has another hidden than its launches"):
        run(pair, "graphs")


@pytest.mark.parametrize("way", ["plain", "lookup"])
def test_a_text_that_differs_is_found(way: str, pair: CudaPair, stepping: Any) -> None:
    """A second text, or one with drafts, whose later tokens depend on another number in the cache."""

    def spoil(stepped: str, number: int) -> None:
        if stepped == way and (way != "plain" or number > 11):
            pair.stepper.cache.v[0, : int(pair.stepper.state[0])] *= -3

    stepping(spoil)
    what = "a second run writes another text" if way == "plain" else "drafts change the text"
    with pytest.raises(Unsound, match=rf"^{way}: {what} from token \d+ on"):
        run(pair, "texts")


def test_sampled_texts_are_compared(pair: CudaPair, stepping: Any) -> None:
    def spoil(way: str, number: int) -> None:
        if way == "block":
            pair.stepper.cache.v[0, : int(pair.stepper.state[0])] *= -3

    stepping(spoil)
    with pytest.raises(Unsound, match=r"^block, sampled: drafts change the text"):
        run(pair, "sampled texts")


def test_texts_that_the_host_draws_are_compared_too(pair: CudaPair, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Runner.draft_and_logits

    def shifted(runner: Runner, drafted: int) -> Any:
        """With drafts, the rows are the wrong way round."""
        draft, logits = read(runner, drafted)
        return draft, logits[::-1]

    monkeypatch.setattr(Runner, "draft_and_logits", shifted)
    with pytest.raises(Unsound, match="sampled: drafts change the text"):
        run(pair, "sampled texts")


def test_a_fault_of_long_contexts_alone_is_found(pair: CudaPair) -> None:
    def spoil(arguments: dict[str, Any]) -> None:
        if int(arguments["start"]) > 256:
            arguments["out"][0, 0] += 1

    with fault(pair, {"attention": spoil}):
        assert run(pair, "operations", "texts") == ["operations", "texts"]
        with pytest.raises(Unsound, match=r"^attention of .*layer 0: "):
            run(pair, "long context")


def test_what_breaks_in_an_operation_is_its_fault(pair: CudaPair) -> None:
    def spoil(_arguments: dict[str, Any]) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    with (
        fault(pair, {"swiglu": spoil}),
        pytest.raises(Unsound, match=r"^swiglu of layer 0: RuntimeError: CUDA error: an illegal memory access was en"),
    ):
        run(pair, "operations")


def test_memory_that_runs_out_is_nobodys_fault(pair: CudaPair) -> None:
    def spoil(_arguments: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with fault(pair, {"swiglu": spoil}), pytest.raises(torch.OutOfMemoryError):
        run(pair, "operations")


@pytest.mark.parametrize("ids", [None, torch.arange(100, 150, dtype=torch.int32)])
@pytest.mark.parametrize(("behind", "is_tie"), [(1e-6, True), (0.1, False)])
def test_logits_that_are_equal_but_for_rounding_are_a_tie(ids: Tensor | None, behind: float, is_tie: bool) -> None:
    logits = torch.zeros(16, 50)
    logits[:, 5], logits[:, 9] = 20.0, 20.0 - behind
    first = 0 if ids is None else 100
    want = {"logits": logits, "out": torch.full((16,), 5 + first, dtype=torch.int32)}
    if ids is not None:
        want["ids"] = ids
    got = {"out": want["out"].clone()}
    got["out"][3] = 9 + first
    operations._settle_ties(got, want)
    assert torch.equal(got["out"], want["out"]) is is_tie


def test_rows_that_attention_leaves_dead_may_be_anything(pair: CudaPair) -> None:
    def spoil(arguments: dict[str, Any]) -> None:
        if arguments["mask"] == "block":
            arguments["out"][arguments["block"] :] = 7.0
            arguments["sums"][:, arguments["block"] :] = float("nan")

    with fault(pair, {"attention": spoil}):
        assert run(pair, "operations") == ["operations"]


@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, **EXPERTS)], ids=["dense", "experts"])
def test_references_make_nothing_elsewhere_than_on_the_device_of_their_arguments(
    shape: DecoderConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have to run on a GPU: here, on whatever is no processor."""

    def elsewhere(_name: str, op: Op) -> Op:
        def run(*given: Any, **named: Any) -> None:
            with torch.device("meta"):
                op(*given, **named)

        return run

    monkeypatch.setattr(assembly, "measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0))
    files = write_target(tmp_path / "target.gguf", shape), write_drafter(tmp_path, shape)
    pair = load_pair(*files, CPU, CudaSettings(context=128), REFERENCES)
    pair.prefill(IDS)
    pair.rollback(len(IDS))
    pair.stepper.set_sampling(*stages.DRAWING)
    with using(pair.stepper, around(REFERENCES, elsewhere)):
        pair.stepper.extend(2, 1)
        for way, greedy in (("plain", True), ("lookup", False), ("block", True)):
            pair.stepper.step(way, greedy, 1)  # type: ignore[arg-type]
