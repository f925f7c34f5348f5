"""Offsets and differences, against the texts themselves."""

from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.next_edit.source import EditProposal, ParsedSource, difference

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


@given(TEXTS, st.data())
def test_places_are_counted_in_characters(text: str, data: st.DataObject) -> None:
    source = ParsedSource("python", text)
    at = data.draw(st.integers(0, len(text)))
    line, column = source.place(len(text[:at].encode()))
    lines = text[:at].split("\n")
    assert (line, column) == (len(lines) - 1, len(lines[-1]))


@given(TEXTS, st.data())
def test_an_accepted_proposal(text: str, data: st.DataObject) -> None:
    start, end = sorted(data.draw(st.integers(0, len(text))) for _ in range(2))
    proposal = EditProposal(len(text[:start].encode()), len(text[:end].encode()), "new", None)
    assert ParsedSource("python", text).applied(proposal) == text[:start] + "new" + text[end:]


def test_half_of_a_character_is_one_character() -> None:
    text = "x = '\ud800'\nvalue = x\n"
    source = ParsedSource("python", text)
    (leaf,) = source.leaves_called("value")
    assert source.place(leaf.start_byte) == (1, 0)
