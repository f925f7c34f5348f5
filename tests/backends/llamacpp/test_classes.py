"""Classes of widths, found in made-up arithmetic that groups rows as real kernels do, and in a real small model."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
import pytest

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.classes import WIDTHS, LlamaDecoder, Rows, WidthClass, find_classes
from localdflash.backends.llamacpp.decode_flags import NOT_REPACKED
from tests.support.target_models import case_of

Kernel = Callable[[int, int, int], float]  # (width, row, place) -> what the row's bits depend on


class Made:
    """A decoder whose row i holds its token and what a kernel adds; `hidden` rows are equal by luck.

    Decodes of the widths `forgetful` leave other states than single-token batches do.
    """

    def __init__(self, kernel: Kernel, hidden: Sequence[int] = (), forgetful: Sequence[int] = ()) -> None:
        self.kernel, self.hidden, self.forgetful, self.place = kernel, hidden, forgetful, 0
        self.decodes = 0

    def go_to(self, place: int) -> None:
        self.place = place

    def rows(self, width: int) -> Rows:
        self.decodes += 1
        return np.array([[row, self._bits(width, row, row)] for row in range(width)], np.float32)

    def again(self, width: int) -> Rows | None:
        if not self.forgetful:
            return None
        rows = self.rows(width)[width // 2 :]
        return rows + 1 if width in self.forgetful else rows

    def one_by_one(self, width: int, count: int) -> Rows:
        return np.array([[token, self._bits(width, 0, token)] for token in range(count)], np.float32)

    def _bits(self, width: int, slot: int, token: int) -> float:
        return 0.0 if token in self.hidden else self.kernel(width, slot, self.place)


make: Any = Made


def repacked(width: int, row: int, _place: int) -> float:
    """Groups of four rows, and the rest one by one."""
    return float(row < width - width % 4)


def split(width: int, _row: int, place: int) -> float:
    """A lone row is split over threads where the cache is long."""
    return float(width == 1 and place > 0)


def growing(width: int, _row: int, place: int) -> float:
    """A GPU: 1, 2 to 8 and more rows; and another bit in a longer cache."""
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
def test_widths_that_agree_in_every_row_and_place(kernel: Kernel, expected: list[WidthClass]) -> None:
    assert find_classes(make(kernel)) == expected


def test_widths_that_leave_other_states_are_no_class() -> None:
    assert find_classes(make(lambda *_: 0.0, forgetful=(3, 16)))[0].widths == tuple(
        width for width in WIDTHS if width not in (3, 16)
    )


@pytest.mark.parametrize("architecture", ["qwen3", "qwen35"])
def test_a_real_decoder_gives_the_same_rows_again_and_reaches_all_places(architecture: str, tmp_path: Path) -> None:
    model = llama_library.load_model(case_of(architecture, "Q8_0").write(tmp_path / "model.gguf", "Q8_0"), repack=False)
    with closing(LlamaDecoder(model, NOT_REPACKED, 1)) as decoder:
        for place in range(3):
            decoder.go_to(place)
            rows = decoder.rows(9)
            assert rows.shape[0] == 9
            assert np.array_equal(rows, decoder.rows(9))
            assert np.abs(decoder.one_by_one(2, 9) - rows).max() < 0.1 * rows.std()
            again = decoder.again(9)
            assert (again is None) == (architecture != "qwen35")
            assert again is None or np.array_equal(again, rows[4:])
    api.llama_model_free(model)
