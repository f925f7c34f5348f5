"""Offsets and differences, against the texts themselves."""

from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.next_edit.source import difference

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
