"""An answer that is told twice: a reader ends up with exactly what the second telling says, and no step is lost."""

from hypothesis import given
from hypothesis import strategies as st

from localdflash.chat.answer_events import Replay
from localdflash.chat.messages import StepRecord

TEXT = st.text("ab\né😋", max_size=12)


def steps(parts: list[str]) -> list[tuple[str, StepRecord | None]]:
    """Each part as a step whose tokens are its characters."""
    told: list[tuple[str, StepRecord | None]] = []
    for part in parts:
        sizes = tuple(len(character.encode()) for character in part)
        told.append((part, StepRecord("dflash", len(sizes), max(len(sizes) - 1, 0), sizes, 1.0)))
    return told


class Reader:
    """What is on a screen."""

    def __init__(self) -> None:
        self.replay, self.text, self.sizes, self.anew = Replay(), "", 0, 0

    def take(self, found: tuple[bool, list[tuple[str, StepRecord | None]]]) -> None:
        anew, told = found
        if anew:
            self.text, self.sizes, self.anew = "", 0, self.anew + 1
        for text, step in told:
            self.text += text
            assert step
            assert step.accepted <= min(step.drafted, len(step.sizes))
            self.sizes += sum(step.sizes)

    def read(self, parts: list[str]) -> None:
        for text, step in steps(parts):
            self.take(self.replay.push(text, step))


@given(tellings=st.lists(st.lists(TEXT, max_size=6), min_size=1, max_size=4))
def test_a_reader_has_what_was_told_last(tellings: list[list[str]]) -> None:
    reader = Reader()
    for number, parts in enumerate(tellings):
        if number:
            reader.replay.begin_again()
        reader.read(parts)
    reader.take(reader.replay.finish())
    assert reader.text == reader.replay.text == "".join(tellings[-1])
    assert reader.sizes == len(reader.text.encode())


def test_a_step_that_was_half_told_tells_of_its_rest() -> None:
    replay = Replay()
    replay.push("abc", None)
    replay.begin_again()
    assert replay.push("abcdef", StepRecord("lookup", 5, 4, (1, 1, 1, 2, 1), 2.0)) == (
        False,
        [("def", StepRecord("lookup", 2, 1, (2, 1), 2.0))],
    )
