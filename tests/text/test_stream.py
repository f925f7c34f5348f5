import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import UsageError
from localdflash.text.stream import (
    MAX_PERIOD_CHARS,
    MIN_REPEAT_CHARS,
    REPEAT_COUNT,
    Detokenizer,
    Repetition,
    StopStrings,
)
from localdflash.text.tokenizer import Tokenizer
from tests.text.test_thoughts import cut


@given(st.data())
def test_detokenizer_equals_python_s_decoding(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    detokenizer = Detokenizer(tokenizer)
    text = "".join(map(detokenizer.push, data.draw(cut(ids))))
    assert text + detokenizer.finish() == tokenizer.spell(ids).decode("utf-8", "replace")


def first_stop(text: str, stops: list[str]) -> str | None:
    """Return the text before the first complete stop string, the longest of several that end together."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return None


few_letters = st.text(alphabet="ab\n", max_size=12)
stop_lists = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4)


@given(few_letters.flatmap(cut), stop_lists)
def test_stop_strings_do_not_depend_on_chunking(chunks: list[str], stops: list[str]) -> None:
    text = "".join(chunks)
    found = first_stop(text, stops)
    expected = text if found is None else found
    stream, shown, stopped = StopStrings(stops), "", False
    for chunk in chunks:
        more, stopped = stream.push(chunk)
        shown += more
        assert expected.startswith(shown)
    assert stopped == (found is not None)
    assert shown + stream.finish() == expected


def test_no_text_follows_a_stop_string() -> None:
    stream = StopStrings(["END"])
    assert [stream.push(text) for text in ("one EN", "D two", "three")] == [("one ", False), ("", True), ("", True)]
    assert stream.finish() == ""
    with pytest.raises(UsageError, match="empty stop"):
        StopStrings(["a", ""])


def test_a_long_stop_string_costs_little_per_token() -> None:
    stream, began = StopStrings(["ab" * 2000 + "c"]), time.perf_counter()
    for _ in range(20_000):
        assert stream.push("ab ") == ("ab ", False)
    assert time.perf_counter() - began < 3  # 13 s if every beginning of the stop string is compared


@given(cut("a END 'b END' c END d"))
def test_an_exempt_stop_string_is_text(chunks: list[str]) -> None:
    stream = StopStrings(["END"], lambda before: before.count("'") < 2)
    assert "".join(stream.push(chunk)[0] for chunk in chunks) + stream.finish() == "a END 'b END' c "
    assert stream.found == "END"


def test_a_stop_string_that_ends_an_exempt_part_counts() -> None:
    stream = StopStrings(["'}"], lambda before: before.count("'") == 1)
    assert stream.push("{a: 'b'} c") == ("{a: 'b", True)


PROSE = "Somebody walked through the snow for an hour, and then it was dark. "


def text_before_repetition(text: str, sizes: Sequence[int] = (10**6,)) -> str:
    """Return the text that is shown when `text` arrives in pieces of these sizes, repeated."""
    ending, text_so_far, at, number = Repetition(), "", 0, 0
    while at < len(text):
        size = sizes[number % len(sizes)]
        text_so_far += ending.push(text[at : at + size])
        at, number = at + size, number + 1
    text_so_far += ending.finish()
    assert ending.reason == ("repeat" if ending.ended else "")
    assert ending.ended or text_so_far == text
    return text_so_far


@pytest.mark.parametrize("piece", ["name, ", "a", "\n", "ha ha! ", PROSE, PROSE * 2 + "No. ", "x" * 300 + "y"])
def test_repeated_text_is_cut(piece: str) -> None:
    kept = text_before_repetition("Hi! " + piece * 5000)
    assert MIN_REPEAT_CHARS <= len(kept) <= 4 + max((REPEAT_COUNT + 2) * len(piece), MIN_REPEAT_CHARS)


@pytest.mark.parametrize(
    "text",
    [
        "-" * 300,
        "0, " * 120,
        PROSE * 3,
        (PROSE * 4 + "No. ") * 3,
        "".join(f"    assert add({one}, 1) == {one + 1}\n" for one in range(300)),
        "".join(f"{number} " for number in range(MAX_PERIOD_CHARS // 2)) * 8,
    ],
)
def test_text_without_repetition_is_not_cut(text: str) -> None:
    assert text_before_repetition(text) == text


@given(
    st.text("ab ", max_size=30),
    st.text("abc\n", min_size=1, max_size=60),
    st.lists(st.integers(1, 90), min_size=1, max_size=9),
)
def test_repetition_does_not_depend_on_chunking(before: str, piece: str, sizes: list[int]) -> None:
    text = before + piece * (1200 // len(piece)) + before
    assert text_before_repetition(text, sizes) == text_before_repetition(text)
