"""Every kernel on the GPU against its reference, and bit by bit against itself.

The references are checked against float64 and Hugging Face elsewhere, without a GPU. These tests need a GPU:
the matrix instructions, the inline assembly, split sums across programs that really run at once, dependent launches.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.proof.calls import Arguments
from localdflash.backends.cuda.proof.operations import describe_difference, same_bits
from localdflash.kernels.cuda import launch
from localdflash.kernels.cuda.norm import Norm
from tests.gpu import gemm_cases, token_cases
from tests.gpu.case import CPU, ROW_AXES, Case

pytestmark = [  # numpy, for rows with NaN in the interpreter
    pytest.mark.filterwarnings("ignore:.*NaN slice:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
]
CASES = [*gemm_cases.CASES, *token_cases.CASES]


def named(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def rows_of(results: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    """Return some rows of every output that has rows."""
    return {
        name: value[rows] if ROW_AXES[name] == 0 else value[:, rows]
        for name, value in results.items()
        if name in ROW_AXES
    }


@pytest.fixture(autouse=True)
def _skipped_where_the_chip_lacks_something(request: pytest.FixtureRequest, device: torch.device) -> None:
    if why := request.node.callspec.params["case"].lacking(device):
        pytest.skip(why)


@named(CASES)
def test_against_the_reference(case: Case, device: torch.device) -> None:
    expected = case.expected()
    for name, actual in case.run(device).items():
        assert actual.shape == expected[name].shape
        assert not describe_difference(name, actual, expected[name]), name


@named(CASES)
def test_the_simplest_launch_against_the_reference(case: Case, device: torch.device) -> None:
    """The simplest launch (no split, one stage, not dependent) is the fallback after a failed check."""
    expected = case.expected()
    with launch.simplest():
        found = case.run(device)
    for name, actual in found.items():
        assert not describe_difference(name, actual, expected[name]), name


@named(CASES)
def test_runs_are_bit_equal(case: Case, device: torch.device) -> None:
    """The second run uses the same buffers, whose counters must be reset."""
    first = case.run(device)
    arguments = case.build(device)
    for _ in range(3):
        fresh = case.build(device)
        for name in case.outputs:
            restore(arguments[name], fresh[name])
        case.op(**arguments)
    for name, again in case.results(arguments).items():
        assert same_bits(first[name], again), name


def restore(value: object, fresh: object) -> None:
    """Restore the initial contents of an output, a tensor or an object with tensors."""
    if isinstance(value, Tensor) and isinstance(fresh, Tensor):
        value.copy_(fresh)
    elif hasattr(value, "__dict__"):
        for name, part in vars(value).items():
            restore(part, vars(fresh)[name])


def spoil(live: int) -> Callable[[Arguments], None]:
    """Fill the rows from `live` on of all inputs with NaN."""

    def change(arguments: Arguments) -> None:
        for name, value in arguments.items():
            if name in ROW_AXES and isinstance(value, Tensor) and value.dtype.is_floating_point:
                (value[live:] if ROW_AXES[name] == 0 else value[:, live:]).fill_(float("nan"))
        for norm in (arguments.get("norm"), arguments.get("previous_norm")):
            if norm is not None:
                norm.squares[:, live:] = float("nan")

    return change


@named([case for case in CASES if case.rows])
@pytest.mark.parametrize("live", [1, 7])
def test_rows_do_not_depend_on_the_rows_after_them(case: Case, live: int, device: torch.device) -> None:
    integers, part = case.run(device), case.run(device, spoil(live))
    for name, expected in rows_of(integers, slice(live)).items():
        assert same_bits(rows_of(part, slice(live))[name], expected), name


def rolled(by: int) -> Callable[[Arguments], None]:
    """Return a change that moves every row `by` places forward."""

    def change(arguments: Arguments) -> None:
        for name, value in arguments.items():
            if name in ROW_AXES and isinstance(value, Tensor):
                value.copy_(value.roll(-by, ROW_AXES[name]))
        for norm in (arguments.get("norm"), arguments.get("previous_norm")):
            if norm is not None:
                for squares in (norm.squares, norm.before):
                    squares.copy_(squares.roll(-by, 1))

    return change


@named([case for case in CASES if case.free])
@pytest.mark.parametrize("by", [1, 15])
def test_a_row_has_the_same_bits_in_every_place(case: Case, by: int, device: torch.device) -> None:
    """A drafted token is verified in another row than without drafts."""
    integers, turned = case.run(device), case.run(device, rolled(by))
    for name, actual in rows_of(turned, slice(1)).items():
        assert same_bits(actual, rows_of(integers, slice(by, by + 1))[name]), name


@named([case for case in token_cases.CASES if case.name.startswith("attention chain")])
@pytest.mark.parametrize("t", [1, 15])
def test_block_attention_matches_single_token_decoding(case: Case, t: int, device: torch.device) -> None:
    def single_row(arguments: Arguments) -> None:
        arguments["start"] += t
        arguments["q"].copy_(arguments["q"].roll(-t, 0))

    block, plain = case.run(device), case.run(device, single_row)
    assert same_bits(plain["out"][0], block["out"][t])
    assert same_bits(plain["sums"][:, 0], block["sums"][:, t])


@named([case for case in gemm_cases.CASES if case.name.startswith("qkv")])
@pytest.mark.parametrize("t", [1, 15])
def test_block_heads_match_single_token_decoding(case: Case, t: int, device: torch.device) -> None:
    start = int(case.build(CPU)["start"])

    def single_row(arguments: Arguments) -> None:
        rolled(t)(arguments)
        arguments["start"] += t

    block, plain = case.run(device), case.run(device, single_row)
    assert same_bits(plain["q_out"][0], block["q_out"][t])
    for name in (name for name in block if name.startswith("cache.")):
        assert same_bits(plain[name][start + t], block[name][start + t]), name


def single_row(tile: int) -> Callable[[Arguments], None]:
    """Return a change that keeps one of two tiles of rows."""

    def change(arguments: Arguments) -> None:
        for name, value in arguments.items():
            if name in ROW_AXES and isinstance(value, Tensor):
                arguments[name] = value[tile].clone()
            if isinstance(value, Norm):
                arguments[name] = replace(value, squares=value.squares[tile], before=value.before[tile])
        for start in (arguments.get("start"), getattr(arguments.get("tap"), "start", None)):
            if start is not None:
                start.add_(16 * tile)

    return change


@named(gemm_cases.TILED)
@pytest.mark.parametrize("tile", [0, 1])
def test_two_tiles_leave_the_bits_of_each(case: Case, tile: int, device: torch.device) -> None:
    """A prompt's rows have the bits of decoding."""
    two_tiles, single_tile = case.run(device), case.run(device, single_row(tile))
    start = int(case.build(CPU).get("start", 57)) + 16 * tile  # 57: start of a tap
    for name, actual in single_tile.items():
        if name in ROW_AXES:
            assert same_bits(two_tiles[name][tile], actual), name
        elif not name.endswith("start"):  # a ring buffer, or a cache
            places = (start + torch.arange(16)) % len(actual)
            assert same_bits(two_tiles[name].view(torch.uint8)[places], actual.view(torch.uint8)[places]), name
