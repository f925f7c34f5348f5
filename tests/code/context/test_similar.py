from localdflash.code.context.similar import (
    STEP_LINES,
    WINDOW_LINES,
    find_identifiers,
    find_most_similar,
    identifiers_around,
)

LINES = [f"name_{number} = other_{number}" for number in range(200)]


def test_identifiers_are_names_of_some_length_without_keywords() -> None:
    assert find_identifiers("def f(total): return self.total + x1 + 77 + größe") == {"total", "größe"}


def test_the_window_moves_in_steps_and_skips_the_line_being_typed() -> None:
    changed = [*LINES]
    changed[100] = "entirely_different"
    assert identifiers_around(changed, 100) == identifiers_around(LINES, 100)
    assert identifiers_around(changed, 101) != identifiers_around(LINES, 101)
    starts = [min(int(name.split("_")[1]) for name in identifiers_around(LINES, line)) for line in range(100, 120)]
    assert len(set(starts)) <= 3


def test_the_best_window_wins_and_the_first_of_equals() -> None:
    wanted = find_identifiers("\n".join(LINES[60 : 60 + WINDOW_LINES]))
    found = find_most_similar(wanted, "\n".join(LINES))
    assert found
    assert (found.line, round(found.score, 6)) == (60, 1.0)
    assert found.text == "\n".join(LINES[60 : 60 + WINDOW_LINES])
    twice = find_most_similar(frozenset({"alpha"}), "alpha\n" * (3 * STEP_LINES))
    assert twice
    assert twice.line == 0


def test_nothing_in_common_short_and_minified_texts() -> None:
    alpha = frozenset({"alpha"})
    found = find_most_similar(alpha, "alpha")
    assert found
    assert found.text == "alpha"
    for wanted, text in ((alpha, "beta\n"), (frozenset[str](), ""), (alpha, "alpha " * 1_000)):
        assert find_most_similar(wanted, text) is None
