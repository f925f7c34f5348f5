"""Edit history of a document, and differences between texts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.code.next_edit.source import difference
from localdflash.code.next_edit.trail import MAX_STEPS, EditTrail, LineEdit

TEXT = "one\ntwo\nthree\nfour\n"


class Typist:
    """Document whose lines change as a client reports it."""

    def __init__(self, text: str = TEXT) -> None:
        self.trail = EditTrail(text)
        self.lines = text.split("\n")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def put(self, line: int, *new: str, removed: int = 1) -> bool:
        """Replace lines; return whether that accepted the proposal."""
        return self.change((line, removed, new))

    def change(self, *changes: tuple[int, int, tuple[str, ...]]) -> bool:
        """Replace (first, count, new lines) several times in one notification."""
        edits = list[LineEdit]()
        for line, removed, new in changes:
            edits.append((line, self.lines[line : line + removed], new))
            self.lines[line : line + removed] = new
        return self.trail.edited(edits, self.text)


def accept(typist: Typist, line: int, new: str) -> None:
    """Offer another line with the pattern "pattern", and accept it."""
    lines = [*typist.lines[:line], new, *typist.lines[line + 1 :]]
    assert typist.trail.offer("pattern", "\n".join(lines))
    assert typist.put(line, new)


def test_a_text_that_was_there_before_is_an_undo() -> None:
    typist = Typist()
    typist.put(0, "uno")
    typist.put(2, "tres")
    typist.put(2, "three")
    assert typist.trail.steps() == []
    typist.put(0, "one")
    assert typist.trail.steps() == []
    typist.put(0, "uno")  # again, by redo
    assert typist.trail.steps() == []


def test_what_was_accepted_and_undone_is_not_proposed_again() -> None:
    typist = Typist()
    typist.put(0, "uno")
    accept(typist, 2, "tres")
    assert not typist.put(2, "three")
    assert typist.trail.steps() == []
    assert not typist.trail.offer("pattern", TEXT)


def test_several_places_at_once_say_nothing() -> None:
    typist = Typist()
    typist.change((0, 1, ("uno",)), (2, 1, ("tres",)))
    assert typist.trail.steps() == []
    typist.put(3, "cuatro")
    assert len(typist.trail.steps()) == 2
    typist.change((3, 1, ("cuatros",)), (1, 1, ("dos",)))  # the first one continues the last edit
    assert typist.trail.steps() == []


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.lists(st.sampled_from(["a", "bb", ""]), max_size=2)))
)
def test_the_last_step_is_the_document(changes: list[tuple[int, int, list[str]]]) -> None:
    typist = Typist()
    for line, removed, new in changes:
        at = min(line, len(typist.lines) - 1)
        typist.put(at, *new, removed=min(removed, len(typist.lines) - 1 - at))
        steps = typist.trail.steps()
        assert len(steps) <= MAX_STEPS + 1
        assert not steps or (steps[-1] == typist.text and typist.text not in steps[:-1])


TEXTS = st.text(st.sampled_from("ab\n é😋"), max_size=20)


@given(TEXTS, TEXTS)
def test_a_difference_leads_from_one_text_to_the_other(one: str, other: str) -> None:
    before, after = one.encode(), other.encode()
    change = difference(before, after)
    if change is None:
        assert before == after
        return
    assert before[: change.start] == after[: change.start]
    assert before[change.old_end :] == after[change.new_end :]
    assert change.start <= change.old_end <= len(before)
    assert change.start <= change.new_end <= len(after)
    replaced = before[: change.start] + after[change.start : change.new_end] + before[change.old_end :]
    assert replaced == after
    if change.old_end > change.start and change.new_end > change.start:
        assert before[change.start] != after[change.start]
        assert before[change.old_end - 1] != after[change.new_end - 1]
