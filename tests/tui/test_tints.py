"""Acceptance view compared with an oracle that tints byte by byte."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.chat.messages import StepRecord
from localdflash.text.sanitize import sanitize
from localdflash.tui.tints import TintedText, tint_of

_TEXT = st.text(st.sampled_from("ab\n\té錯😋\x1b\r\u202e\ud800 ❤\ufe0f\u0301"), max_size=60)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["dflash", "lookup", "", "another"]), st.lists(st.integers(0, 6), max_size=5)),
    max_size=12,
)


def _steps(described: Sequence[tuple[str, list[int]]]) -> list[StepRecord]:
    return [
        StepRecord(drafter, len(sizes), len(sizes) - 1 if drafter and sizes else 0, tuple(sizes), 1.0)
        for drafter, sizes in described
    ]


def _oracle(text: str, steps: Sequence[StepRecord]) -> list[tuple[str, str]]:
    """Return each shown character with its style, without wraps."""
    of_byte: list[str] = []
    number = 0
    for step in steps:
        for place, size in enumerate(step.sizes):
            tint = tint_of(step.drafter if place < step.accepted else "")
            of_byte += [tint + (" step" if number % 2 else "")] * size
        number += bool(sum(step.sizes))
    screen_text: list[tuple[str, str]] = []
    byte = 0
    for character in text:
        style = of_byte[byte] if byte < len(of_byte) else ""
        byte += len(character.encode("utf-8", "surrogatepass"))
        replaced = character if character == "\n" else sanitize(character).replace("\t", "    ")
        screen_text += [(one, "" if one == "\n" else style) for one in replaced]
    return screen_text


def _shown(tinted: TintedText, width: int, oracle: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the shown characters with their styles; blanks that wrapping drops have the oracle's."""
    found: list[tuple[str, str]] = []
    for line in tinted.lines(width):
        found += [(one, run.style) for run in line.runs for one in run.text]
        if line.ending == "\n":
            found.append(("\n", ""))
        elif line.ending:
            found.append((line.ending, oracle[len(found)][1]))
    return found[:-1]


@settings(max_examples=40)
@given(st.lists(st.one_of(_TEXT, _STEPS), max_size=8), st.integers(2, 30))
def test_streamed_tints_equal_tints_at_once(events: list[str | list[tuple[str, list[int]]]], width: int) -> None:
    """Text and steps arrive in any order; rows before `first_changed` do not change."""
    growing, text, steps = TintedText(), "", list[StepRecord]()
    before = list(growing.lines(width))
    for event in events:
        if isinstance(event, str):
            growing.append(event)
            text += event
        else:
            for step in _steps(event):
                growing.add(step)
                steps.append(step)
        rows = list(growing.lines(width))
        assert rows == list(TintedText(text, steps).lines(width))
        assert rows[: growing.first_changed] == before[: growing.first_changed]
        before = rows
        oracle = _oracle(text, steps)
        assert _shown(growing, width, oracle) == oracle


def test_rows_end_between_words() -> None:
    assert [row.text for row in TintedText("one two three", [StepRecord("", 0, 0, (6, 7), 1.0)]).lines(9)] == [
        "one two",
        "three",
    ]


def test_drafter_names_are_sanitised() -> None:
    name = "x\x1b]0;evil\x07"
    screen_text = "".join(run.text for run in TintedText("a", [StepRecord(name, 1, 1, (1,), 1.0)]).legend())
    assert screen_text == sanitize(screen_text)
    assert "\x1b" not in screen_text
