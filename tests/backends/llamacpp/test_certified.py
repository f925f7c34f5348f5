"""Choice of a decode mode from given measurements; storage and renewal of measurements."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
import pytest

from localdflash.backends.llamacpp import certified, llama_library
from localdflash.backends.llamacpp.certified import (
    FileMeasurement,
    MeasuredMode,
    choose_mode,
    load_or_measure,
    measure,
    skip_measuring,
)
from localdflash.backends.llamacpp.classes import WIDTHS, LlamaDecoder, Rows, WidthClass, find_classes
from localdflash.backends.llamacpp.decode_flags import (
    MAX_WIDTH_WITH_STATES,
    NOT_REPACKED,
    ONE_PATH,
    UNMODIFIED,
    DecodeMode,
)
from tests.support.target_models import case_of

pytestmark = pytest.mark.measures_rows
ALL = DecodeMode(ONE_PATH, tuple(range(1, 33)))
FOURS = DecodeMode(ONE_PATH, (4, 8, 12, 16, 32))
SLOW = DecodeMode(NOT_REPACKED, tuple(range(1, 33)))


def record(*modes: MeasuredMode) -> FileMeasurement:
    return FileMeasurement(1.0, modes)


def at(way: DecodeMode, price: float, eight: float = 3.0) -> MeasuredMode:
    return MeasuredMode(way, {way.widths[0]: price, 8: eight})


@pytest.mark.parametrize(
    ("price", "mode", "with_drafter", "kind"),
    [
        (1.02, "auto", True, "exact"),
        (1.10, "auto", True, "exact"),
        (1.10, "auto", False, "plain"),  # not worth it for lookup alone
        (1.10, "exact", False, "exact"),
        (1.20, "auto", True, "fast"),
        (1.20, "exact", True, "exact"),
        (1.00, "fast", True, "fast"),
    ],
)
def test_mode_is_chosen_by_cost_of_exactness(price: float, mode: Any, with_drafter: bool, kind: str) -> None:
    chosen = choose_mode(record(at(ALL, price)), mode, with_drafter)
    assert (chosen.kind, chosen.may_draft) == (kind, kind != "plain")
    assert chosen.mode == (ALL if kind == "exact" else UNMODIFIED)
    if kind in ("fast", "plain") and mode == "auto":
        assert f"{price:.2f}" in chosen.message


def test_no_certified_width_claims_nothing() -> None:
    for mode in ("auto", "exact"):
        assert choose_mode(record(), mode, True).kind == "not certified"
    assert choose_mode(record(), "auto", False).kind == "plain"
    assert "may differ" in choose_mode(record(), "exact", False).message


def test_cheapest_mode_wins_counting_drafts_and_single_token_steps() -> None:
    assert choose_mode(record(at(FOURS, 1.9, 2.0), at(SLOW, 1.2, 4.0)), "exact", True).mode == SLOW
    assert choose_mode(record(at(FOURS, 1.9, 2.0), at(SLOW, 1.9, 9.0)), "exact", True).mode == FOURS


@pytest.mark.parametrize("mode", ["auto", "exact", "fast"])
def test_recurrent_batches_fit_the_rollback_limit(mode: Any) -> None:
    chosen = choose_mode(FileMeasurement(1.0, (), max_width=1), mode, True)
    assert (chosen.may_draft, chosen.mode) == (False, UNMODIFIED)  # prompts are read in full width
    assert "recurrent layers" in chosen.message
    assert "\n" not in chosen.message
    chosen = choose_mode(FileMeasurement(1.0, (), max_width=MAX_WIDTH_WITH_STATES), mode, True)
    assert chosen.may_draft
    assert chosen.mode.widths == tuple(range(1, MAX_WIDTH_WITH_STATES + 1))


def test_measurements_are_stored_by_file_device_and_threads(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def measured(*arguments: object) -> FileMeasurement:
        calls.append(arguments)
        return record(at(ALL, 1.1))

    monkeypatch.setattr(certified, "measure", measured)
    path = tiny_pair / "target.gguf"
    for device, threads, counted in (("cpu", 1, 1), ("cpu", 1, 1), ("Vulkan0", 1, 2), ("cpu", 2, 3), ("cpu", 1, 3)):
        assert load_or_measure(path, device, threads, lambda _: None) == record(at(ALL, 1.1))
        assert len(calls) == counted
    for kv in ("int8", "k8v4", "int8"):
        load_or_measure(path, "cpu", 1, lambda _: None, kv)
    assert len(calls) == 5


def test_a_damaged_record_is_measured_again(tiny_pair: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certified, "measure", lambda *_: record(at(ALL, 1.1)))
    load_or_measure(tiny_pair / "target.gguf", "cpu", 1, lambda _: None)
    (file,) = (home / "cache" / "rows").iterdir()
    whole = json.loads(file.read_text())
    for text in (
        "",
        "[]",
        '{"key": 3}',
        "\0" * 100,
        json.dumps(whole | {"measurement": {"raw_ms": 1.0, "modes": [{}]}}),
    ):
        file.write_text(text)
        assert load_or_measure(tiny_pair / "target.gguf", "cpu", 1, lambda _: None) == record(at(ALL, 1.1))


def test_recurrent_layers_are_certified_with_rollback(tmp_path: Path) -> None:
    path = case_of("qwen35", "Q8_0").write(tmp_path / "model.gguf", "Q8_0")
    found = measure(lambda repack: llama_library.load_model(path, repack=repack), (ONE_PATH, NOT_REPACKED), 1)
    assert found.max_width == skip_measuring(path).max_width == MAX_WIDTH_WITH_STATES
    assert any(known.mode.widths[-1] == MAX_WIDTH_WITH_STATES for known in found.modes)
    assert all(known.mode.borders for known in found.modes)  # two positions of one sequence cannot be compared


@pytest.mark.parametrize("widths", [(1, 2, 3, 4, 5, 6, 7, 8), (2, 4, 8), (4, 8, 12, 16, 32), (8,)])
def test_draft_rows_see_the_padded_length_of_single_token_steps(widths: tuple[int, ...]) -> None:
    way = DecodeMode(NOT_REPACKED, widths, borders=True)
    for length in range(600):
        max_rows_at = way.max_rows(length)
        assert 1 <= max_rows_at <= widths[-1]
        for rows in range(2, max_rows_at + 1):
            blocks = -(-(length + way.width_for(rows)) // 256)  # a cache is padded to whole blocks
            assert all(-(-(length + row + widths[0]) // 256) == blocks for row in range(rows)), (length, rows)


Kernel = Callable[[int, int, int], float]  # (width, row, position) -> value that determines the row's bits


class Made:
    """Fake decoder whose rows contain the token and the kernel's value; in `hidden` rows it is equal by chance.

    Batches of the widths `forgetful` leave other states than single-token batches.
    """

    def __init__(self, kernel: Kernel, hidden: Sequence[int] = (), forgetful: Sequence[int] = ()) -> None:
        self.kernel, self.hidden, self.forgetful, self.place = kernel, hidden, forgetful, 0
        self.decodes = 0

    def go_to(self, place: int) -> None:
        self.place = place

    def decode_rows(self, width: int) -> Rows:
        self.decodes += 1
        return np.array([[row, self._bits(width, row, row)] for row in range(width)], np.float32)

    def decode_again(self, width: int) -> Rows | None:
        if not self.forgetful:
            return None
        rows = self.decode_rows(width)[width // 2 :]
        return rows + 1 if width in self.forgetful else rows

    def decode_one_by_one(self, width: int, count: int) -> Rows:
        return np.array([[token, self._bits(width, 0, token)] for token in range(count)], np.float32)

    def _bits(self, width: int, slot: int, token: int) -> float:
        return 0.0 if token in self.hidden else self.kernel(width, slot, self.place)


make: Any = Made


def repacked(width: int, row: int, _place: int) -> float:
    """Depend on the row's group of four rows."""
    return float(row < width - width % 4)


def split(width: int, _row: int, place: int) -> float:
    """Depend on whether a single row has a long cache, which is split over threads."""
    return float(width == 1 and place > 0)


def growing(width: int, _row: int, place: int) -> float:
    """Depend on the width as a GPU does (1, 2 to 8, more), and on the length of the cache."""
    return (width > 1) + (width > 8) + 10.0 * (place > 0)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (lambda *_: 0.0, [WidthClass(WIDTHS, False)]),
        (split, [WidthClass(WIDTHS[1:], False)]),
        (repacked, [WidthClass((4, 8, 12, 16, 20, 24, 28, 32), False)]),
        (growing, [WidthClass((2, 3, 4, 5, 6, 7, 8), True), WidthClass((16, 17, 20, 24, 28, 32), True)]),
        (lambda width, row, _: width * 100.0 + row, []),
    ],
)
def test_bit_exact_widths_agree_in_every_row_and_position(kernel: Kernel, expected: list[WidthClass]) -> None:
    assert find_classes(make(kernel)) == expected


def test_widths_with_different_states_are_not_certified() -> None:
    assert find_classes(make(lambda *_: 0.0, forgetful=(3, 16)))[0].widths == tuple(
        width for width in WIDTHS if width not in (3, 16)
    )


@pytest.mark.parametrize("architecture", ["qwen3", "qwen35"])
def test_real_decoder_is_deterministic_at_all_positions(architecture: str, tmp_path: Path) -> None:
    model = llama_library.load_model(case_of(architecture, "Q8_0").write(tmp_path / "model.gguf", "Q8_0"), repack=False)
    with closing(LlamaDecoder(model, NOT_REPACKED, 1)) as decoder:
        for place in range(3):
            decoder.go_to(place)
            rows = decoder.decode_rows(9)
            assert rows.shape[0] == 9
            assert np.array_equal(rows, decoder.decode_rows(9))
            assert np.abs(decoder.decode_one_by_one(2, 9) - rows).max() < 0.1 * rows.std()
            again = decoder.decode_again(9)
            assert (again is None) == (architecture != "qwen35")
            assert again is None or np.array_equal(again, rows[4:])
    api.llama_model_free(model)
