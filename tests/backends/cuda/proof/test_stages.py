"""Every GPU check on a tiny pair: a correct one passes, and injected faults are found and named.

Reference operations replace the kernels; `test_kernels` runs the kernels themselves.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import REFERENCES, Op
from localdflash.backends.cuda.proof import calls, operations, stages
from localdflash.backends.cuda.proof.operations import CheckError, using_ops, wrap_ops
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.moe import Routing
from localdflash.kernels.cuda.split_k import SplitWorkspace
from tests.support.cuda_pairs import load_on_cpu
from tests.support.random_planes import random_planes
from tests.support.tiny_models import SHAPE, write_drafter, write_target

NAN = float("nan")
IDS = torch.randint(150, (20,), generator=torch.Generator().manual_seed(1)).tolist()
Spoil = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> CudaPair:
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.backends.cuda.prompt_reader.BLOCK_TOKENS", (64, 32))
        return load_on_cpu(write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE), context=384)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"TEXT_TOKENS": 8, "SAMPLED_TOKENS": 4, "REPLAYED_STEPS": 2, "BUCKETS": (1, 24)}  # in a context of 384
    for name, value in sizes.items():
        monkeypatch.setattr(stages, name, value)


def run(pair: CudaPair, *with_mode: str, heard: list[str] | None = None) -> list[str]:
    """Run all or some checks; return the names of those that passed."""
    passed = []
    for name, check in stages.stages(pair, IDS, (heard if heard is not None else []).append):
        if not with_mode or name in with_mode:
            check()
            passed.append(name)
    return passed


def spoilt(names: dict[str, Spoil]) -> Callable[[str, Op], Op]:
    """Return operations that run an additional function after their own work."""

    def wrap(name: str, op: Op) -> Op:
        def run(*given: Any, **named: Any) -> None:
            op(*given, **named)
            names[name](calls.bind_arguments(getattr(REFERENCES, name), given, named))

        return run if name in names else op

    return wrap


def fault(pair: CudaPair, names: dict[str, Spoil]) -> Any:
    return using_ops(pair.stepper, wrap_ops(pair.stepper.ops, spoilt(names)))


def add(part: str, value: float) -> Spoil:
    """Change the last number of an operation's result."""

    def spoil(arguments: dict[str, Any]) -> None:
        found: Any = calls.writable_tensors(arguments)[part]
        found.view(-1)[-1] += value

    return spoil


def test_a_sound_pair_passes_every_check_and_is_empty_afterwards(pair: CudaPair) -> None:
    heard: list[str] = []
    assert run(pair, heard=heard) == [
        *("operations", "short prompt", "rows", "prompts", "blocks", "texts", "sampled texts", "graphs", "long context")
    ]
    assert pair.ids == []
    assert int(pair.stepper.state.abs().sum()) == 0
    assert {"qkv of layer 0", "attention of layer 2", "head of output", "residual of the drafter's layer 1"} <= {*heard}
    assert "qkv of the drafter's context" in heard
    rounds = {"begin", "next_tokens", "propose", "caught_up", "lookup", "accept"}
    assert {name.partition(" ")[0] for name in heard} >= rounds | {"embed", "swiglu", "sample", "gather_taps"}


RUNS = count()


def differ(arguments: dict[str, Any]) -> None:
    """Change every second run by less than rounding."""
    add("out", 1e-6 * (next(RUNS) % 2))(arguments)


def place_logits(arguments: dict[str, Any]) -> None:
    """Make results depend on the row, by less than rounding."""
    if (logits := arguments.get("logits")) is not None:
        logits *= 1 + 1e-6 * torch.arange(16).unsqueeze(1)


def second_keys(arguments: dict[str, Any]) -> None:
    """Change the second tile's result in the first layer by less than rounding."""
    if arguments["x"].ndim == 3:
        arguments["a_out"][1, 3] *= 1 + 1e-6


def negate(arguments: dict[str, Any]) -> None:
    """Compute another model."""
    arguments["x"] *= -1
    arguments["a_out"] *= -1


def scramble(arguments: dict[str, Any]) -> None:
    """Unpack other weights."""
    arguments["out"] *= -1


def break_down(_arguments: dict[str, Any]) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")


def add_far(arguments: dict[str, Any]) -> None:
    """Change a number in long contexts only."""
    if int(arguments["start"]) > 256:
        arguments["out"][0, 0] += 1


# Fault, faulty operation, the check that must find it, and the beginning of its message.
FAULTS: dict[str, tuple[Spoil, str, str]] = {
    "qkv": (add("cache.v", 1), "operations", "qkv.*cache.v"),
    "head": (add("out", 1), "operations", "head.*out"),
    "sample": (add("choice", 1), "operations", "sample.*choice"),
    "residual": (add("squares_out", NAN), "operations", r"residual of layer 0: squares_out .*1 of \d+ .*NaN"),
    "attention": (differ, "operations", "attention of layer 0: two runs on the same numbers differ in out"),
    "swiglu": (break_down, "operations", "swiglu of layer 0: RuntimeError: CUDA error: an illegal memory access"),
    "head, by place": (place_logits, "rows", "head of output: a row's bits in logits depend on its index"),
    "residual, two tiles": (second_keys, "prompts", "a prompt in two tiles: the keys of layer 1 "),
    "residual, all": (negate, "short prompt", r"the short prompt: after token \d+ the"),
    "dense": (scramble, "blocks", r"a block of the prompt: after token \d+ the"),
    "attention, far": (add_far, "long context", "attention of .*layer 0: "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str, pair: CudaPair) -> None:
    spoil, stage, words = FAULTS[name]
    with fault(pair, {name.partition(",")[0]: spoil}):
        if stage == "long context":
            assert run(pair, "operations") == ["operations"], "no other check sees it"
        with pytest.raises(CheckError, match=f"^{words}"):
            run(pair, stage)


@pytest.mark.parametrize(
    ("mode", "stage", "words"),
    [
        ("lookup", "graphs", "the graph of lookup: step 1 .*hidden"),
        ("plain", "texts", r"plain: a second run .* from token \d+ on"),
        ("lookup", "texts", r"lookup: drafts change the text from token \d+ on"),
    ],
)
def test_steps_with_wrong_state_are_detected(
    mode: str, stage: str, words: str, pair: CudaPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faults: a graph that differs from its launches, and texts over a wrong cache."""
    real, numbers = pair.runner.step, count()

    def step(stepped: Any, greedy: bool, length: int) -> Any:
        arrival, number = real(stepped, greedy, length), next(numbers)
        if stepped == mode and stage == "graphs":
            pair.stepper.stack.buffers.hidden[3, 5] += 2**-20
        elif stepped == mode and (mode != "plain" or number > 11):
            pair.stepper.cache.v[0, : int(pair.stepper.state[0])] *= -3
        return arrival

    monkeypatch.setattr(pair.runner, "step", step)
    with pytest.raises(CheckError, match=f"^{words}"):
        run(pair, stage)
    pair.set_documents([])
    pair.forget()


def test_out_of_memory_is_not_reported_as_a_fault(pair: CudaPair) -> None:
    def spoil(_arguments: dict[str, Any]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with fault(pair, {"swiglu": spoil}), pytest.raises(torch.OutOfMemoryError):
        run(pair, "operations")


@pytest.mark.parametrize("ids", [None, torch.arange(100, 150, dtype=torch.int32)])
@pytest.mark.parametrize(("behind", "is_tie"), [(1e-6, True), (0.1, False)])
def test_logits_equal_up_to_rounding_are_a_tie(ids: Tensor | None, behind: float, is_tie: bool) -> None:
    logits = torch.zeros(16, 50)
    logits[:, 5], logits[:, 9] = 20.0, 20.0 - behind
    first = 0 if ids is None else 100
    expected = {"logits": logits, "out": torch.full((16,), 5 + first, dtype=torch.int32)}
    if ids is not None:
        expected["ids"] = ids
    actual = {"out": expected["out"].clone()}
    actual["out"][3] = 9 + first
    operations._settle_ties(actual, expected)
    assert torch.equal(actual["out"], expected["out"]) is is_tie


CPU = torch.device("cpu")


def test_copies_share_nothing_but_weights_and_scratch() -> None:
    planes, cache = random_planes("q4_k", 128, 256), Cache.empty(1, 32, 1, 64, torch.int8, CPU)
    arguments = {"planes": planes, "cache": cache, "routing": Routing(4, 2, CPU), "workspace": SplitWorkspace(CPU, []),
                 "scale": 0.5, "a": torch.zeros(3), "scratch": torch.ones(2)}  # fmt: skip
    copy = calls.copy_arguments(arguments)
    assert (copy["planes"], copy["workspace"], copy["scale"]) == (planes, arguments["workspace"], 0.5)
    assert copy["scratch"] is arguments["scratch"]
    for name, tensor in calls.writable_tensors(copy).items():
        tensor.add_(1)
        assert not torch.equal(tensor, calls.writable_tensors(arguments)[name]), name
    assert {"a", "cache.k", "cache.v_scale", "routing.count"} <= calls.writable_tensors(copy).keys()
    assert not {"scratch", "planes.base"} & calls.writable_tensors(copy).keys()
