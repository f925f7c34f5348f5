"""Which widths a session's decodes have, and where they end."""

import pytest

from localdflash.backends.llamacpp.decode_flags import DEFAULT, NOT_REPACKED, RAW, DecodeMode

FOURS = DecodeMode(RAW, (4, 8, 12, 16, 32))


def test_a_decode_is_filled_up_to_a_width_of_the_class() -> None:
    assert [FOURS.width_for(rows) for rows in (1, 4, 5, 13, 17, 32)] == [4, 4, 8, 16, 32, 32]
    assert (FOURS.max_filler, DEFAULT.max_filler, DecodeMode(RAW, tuple(range(1, 33))).max_filler) == (15, 1, 0)
    assert [FOURS.max_rows(length) for length in (0, 255, 256, 1000)] == [32] * 4  # without borders


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


def test_borders_cost_few_rows() -> None:
    """One width W of 8: at most B - W - s + 1 rows where the cache has B cells."""
    way = DecodeMode(NOT_REPACKED, (8,), borders=True)
    assert [way.max_rows(length) for length in (0, 240, 241, 246, 247, 248, 249)] == [8, 8, 8, 3, 2, 1, 8]
