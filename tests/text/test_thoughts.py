"""Thoughts and answer as one text: splitting inverts joining, in any pieces."""

from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.thoughts import ThoughtSplit, ThoughtWriter, join_thoughts, split_thoughts

texts = st.lists(st.sampled_from(["a", "é", "\n", " ", "<", "</", "think", ">", "/"]), max_size=8).map("".join)
plain = texts.filter(lambda text: "<think>" not in text and "</think>" not in text)


Whole = TypeVar("Whole", str, list[int])


@st.composite
def cut(draw: st.DrawFn, text: Whole) -> list[Whole]:
    cuts: list[int] = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def read(pieces: list[str], **begun: bool) -> tuple[str, str]:
    reader = ThoughtSplit(**begun)
    parts = [reader.push(piece) for piece in pieces] + [reader.finish()]
    return "".join(thought for thought, _ in parts), "".join(answer for _, answer in parts)


@given(st.data(), plain, plain)
def test_split_inverts_join(data: st.DataObject, thoughts: str, answer: str) -> None:
    thoughts, answer = thoughts.strip("\n"), answer.lstrip("\n")
    if not thoughts and answer.lstrip().startswith("<think>"):
        return
    pieces = data.draw(cut(join_thoughts(thoughts, answer)))
    assert read(pieces) == (thoughts, answer)
    assert split_thoughts(join_thoughts(thoughts, answer)) == (thoughts, answer, False)


@given(st.data())
def test_splitting_does_not_depend_on_chunking(data: st.DataObject) -> None:
    text = data.draw(st.lists(st.sampled_from(["<think>", "</think>", "a", "\n", " ", "<"]), max_size=8).map("".join))
    assert read(data.draw(cut(text))) == split_thoughts(text)[:2]


@given(st.lists(st.tuples(st.booleans(), plain), max_size=6), st.data())
def test_writer_only_appends_text(parts: list[tuple[bool, str]], data: st.DataObject) -> None:
    parts = sorted(parts, key=lambda part: not part[0])  # thoughts first
    thoughts, answer = ("".join(text for thinks, text in parts if thinks is kind) for kind in (True, False))
    writer = ThoughtWriter()
    written = "".join(
        writer.add_thought(piece) if thinks else writer.add_answer(piece)
        for thinks, text in parts
        for piece in data.draw(cut(text))
    )
    assert written + writer.close() == join_thoughts(
        thoughts.strip("\n"), answer.lstrip("\n") if thoughts.strip("\n") else answer
    )
