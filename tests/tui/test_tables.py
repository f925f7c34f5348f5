"""Tables in any width."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tui.markdown_samples import document, rows

TABLE = "| Name | Size | Note |\n|:--|--:|:-:|\n| a | 1 | x |\n| long | 1000 | some **words** here |\n"


def test_columns_are_aligned() -> None:
    assert rows(TABLE) == [
        "Name │ Size │      Note",
        "─────┼──────┼────────────────",
        "a    │    1 │        x",
        "long │ 1000 │ some words here",
    ]


def test_cells_wrap_where_it_is_narrow() -> None:
    assert rows(TABLE, 26) == [
        "Name │ Size │     Note",
        "─────┼──────┼─────────────",
        "a    │    1 │      x",
        "─────┼──────┼─────────────",
        "long │ 1000 │  some words",
        "     │      │     here",
    ]


def test_one_field_per_line_where_columns_do_not_fit() -> None:
    assert rows(TABLE, 20) == [
        "Name: a",
        "Size: 1",
        "Note: x",
        "",
        "Name: long",
        "Size: 1000",
        "Note: some words",
        "here",
    ]


_CELLS = st.lists(st.text("ab 日", max_size=30), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(_CELLS, st.lists(_CELLS, max_size=4), st.integers(1, 80))
def test_every_cell_is_shown_in_every_width(head: list[str], body: list[list[str]], width: int) -> None:
    lines = ["|" + "|".join(row) + "|" for row in (head, ["-"] * len(head), *body)]
    shown = document("\n".join(lines)).lines(width)
    assert all(line.width <= max(width, 2) for line in shown)
    expected = "".join(head) + "".join("".join(row[: len(head)]) for row in body)
    for character in "ab日":
        assert "".join(line.text for line in shown).count(character) >= expected.count(character)
