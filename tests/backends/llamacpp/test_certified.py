"""Which way a pair runs, from measurements that are handed in; and that they are kept and made anew."""

import json
from pathlib import Path
from typing import Any

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


def record(*ways: MeasuredMode) -> FileMeasurement:
    return FileMeasurement(1.0, ways)


def at(way: DecodeMode, price: float, eight: float = 3.0) -> MeasuredMode:
    return MeasuredMode(way, {way.widths[0]: price, 8: eight})


@pytest.mark.parametrize(
    ("price", "mode", "with_drafter", "kind"),
    [
        (1.02, "auto", True, "exact"),
        (1.10, "auto", True, "exact"),
        (1.10, "auto", False, "plain"),  # lookup alone does not earn it
        (1.10, "exact", False, "exact"),
        (1.20, "auto", True, "fast"),
        (1.20, "exact", True, "exact"),
        (1.00, "fast", True, "fast"),
    ],
)
def test_exactness_may_cost_so_much(price: float, mode: Any, with_drafter: bool, kind: str) -> None:
    chosen = choose_mode(record(at(ALL, price)), mode, with_drafter)
    assert (chosen.kind, chosen.drafts) == (kind, kind != "plain")
    assert chosen.mode == (ALL if kind == "exact" else UNMODIFIED)
    if kind in ("fast", "plain") and mode == "auto":
        assert f"{price:.2f}" in chosen.message


def test_nothing_is_claimed_where_nothing_was_certified() -> None:
    for mode in ("auto", "exact"):
        assert choose_mode(record(), mode, True).kind == "not certified"
    assert choose_mode(record(), "auto", False).kind == "plain"
    assert "may differ" in choose_mode(record(), "exact", False).message


def test_the_cheapest_way_wins_with_drafts_and_plain_steps_counted() -> None:
    assert choose_mode(record(at(FOURS, 1.9, 2.0), at(SLOW, 1.2, 4.0)), "exact", True).mode == SLOW
    assert choose_mode(record(at(FOURS, 1.9, 2.0), at(SLOW, 1.9, 9.0)), "exact", True).mode == FOURS


@pytest.mark.parametrize("mode", ["auto", "exact", "fast"])
def test_decodes_of_recurrent_layers_are_no_wider_than_what_is_taken_back(mode: Any) -> None:
    chosen = choose_mode(FileMeasurement(1.0, (), max_width=1), mode, True)
    assert (chosen.drafts, chosen.mode) == (False, UNMODIFIED)  # prompts are read in full width
    assert "recurrent layers" in chosen.message
    assert "\n" not in chosen.message
    chosen = choose_mode(FileMeasurement(1.0, (), max_width=MAX_WIDTH_WITH_STATES), mode, True)
    assert chosen.drafts
    assert chosen.mode.widths == tuple(range(1, MAX_WIDTH_WITH_STATES + 1))


def test_what_was_measured_is_kept_for_this_file_device_and_threads(
    tiny_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def measured(*arguments: object) -> FileMeasurement:
        calls.append(arguments)
        return record(at(ALL, 1.1))

    monkeypatch.setattr(certified, "measure", measured)
    path = tiny_pair / "target.gguf"
    for device, threads, counted in (("cpu", 1, 1), ("cpu", 1, 1), ("Vulkan0", 1, 2), ("cpu", 2, 3), ("cpu", 1, 3)):
        assert load_or_measure(path, device, threads, lambda _: None) == record(at(ALL, 1.1))
        assert len(calls) == counted


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


def test_recurrent_layers_are_certified_with_what_they_take_back(tmp_path: Path) -> None:
    path = case_of("qwen35", "Q8_0").write(tmp_path / "model.gguf", "Q8_0")
    found = measure(lambda repack: llama_library.load_model(path, repack=repack), (ONE_PATH, NOT_REPACKED), 1)
    assert found.max_width == skip_measuring(path).max_width == MAX_WIDTH_WITH_STATES
    assert any(known.mode.widths[-1] == MAX_WIDTH_WITH_STATES for known in found.modes)
    assert all(known.mode.borders for known in found.modes)  # two places of one sequence cannot be compared


def padded(cells: int) -> int:
    return -(-cells // 256) * 256


@pytest.mark.parametrize("widths", [(1, 2, 3, 4, 5, 6, 7, 8), (2, 4, 8), (4, 8, 12, 16, 32), (8,)])
def test_no_row_of_a_draft_sees_another_padded_length_than_its_plain_step(widths: tuple[int, ...]) -> None:
    way = DecodeMode(NOT_REPACKED, widths, borders=True)
    for length in range(600):
        most = way.max_rows(length)
        assert 1 <= most <= widths[-1]
        for rows in range(2, most + 1):
            seen = padded(length + way.width_for(rows))
            assert all(padded(length + row + widths[0]) == seen for row in range(rows)), (length, rows)
