"""Similar passages, and what does not move them."""

from localdflash.code.context.similar import STEP, WINDOW, around, identifiers, most_similar

LINES = [f"name_{number} = other_{number}" for number in range(200)]


def test_identifiers_are_names_of_some_length_without_keywords() -> None:
    assert identifiers("def f(total): return self.total + x1 + 77 + größe") == {"total", "größe"}


def test_the_line_being_typed_does_not_count() -> None:
    changed = [*LINES]
    changed[100] = "entirely_different"
    assert around(changed, 100) == around(LINES, 100)
    assert around(changed, 101) != around(LINES, 101)


def test_the_window_moves_in_steps() -> None:
    windows = {around([*LINES[:100], "", *LINES[101:]], line) for line in (100,)}
    assert len(windows) == 1
    starts = [min(int(name.split("_")[1]) for name in around(LINES, line)) for line in range(100, 120)]
    assert len(set(starts)) <= 3


def test_the_best_window_wins_and_the_first_of_equals() -> None:
    wanted = identifiers("\n".join(LINES[60 : 60 + WINDOW]))
    found = most_similar(wanted, "\n".join(LINES))
    assert found
    assert (found.line, round(found.score, 6)) == (60, 1.0)
    assert found.text == "\n".join(LINES[60 : 60 + WINDOW])
    twice = most_similar(frozenset({"alpha"}), "alpha\n" * (3 * STEP))
    assert twice
    assert twice.line == 0


def test_nothing_in_common() -> None:
    assert most_similar(frozenset({"alpha"}), "beta\n") is None
    assert most_similar(frozenset(), "") is None


def test_a_short_and_a_minified_text() -> None:
    found = most_similar(frozenset({"alpha"}), "alpha")
    assert found
    assert found.text == "alpha"
    assert most_similar(frozenset({"alpha"}), "alpha " * 1_000) is None
