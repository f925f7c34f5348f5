"""Different answers of one place."""

import numpy as np

from localdflash.code.fim.choices import DistinctStart
from localdflash.code.fim.healing import Healing, Spellings
from localdflash.text.tokenizer import Tokenizer


def test_every_answer_begins_otherwise_and_none_with_an_end() -> None:
    taken = {3}
    first, second = DistinctStart(None, 5, taken), DistinctStart(None, 5, taken)
    assert _allowed(first) == [0, 1, 2, 4]
    assert first.count_allowed([3, 1]) == 0
    first.advance(1)
    assert first.mask() is None
    assert first.count_allowed([1, 3]) == 2
    assert _allowed(second) == [0, 2, 4]
    assert second.count_allowed([1]) == 0


def test_the_word_at_the_cursor_comes_first(tokenizer: Tokenizer) -> None:
    spellings = Spellings(tokenizer, tokenizer.vocab_size)
    (token,) = tokenizer.encode("return", continues=True)[:1]
    word = spellings.of[token].decode()
    taken = {token}
    one = DistinctStart(Healing(spellings, word), spellings.size, taken)
    mask = one.mask()
    assert mask is not None
    assert mask[token]  # it spells the word, though another answer has begun with it
    assert one.count_allowed([token, token]) == 1
    one.advance(token)
    assert token not in _allowed(one)
    one.advance(0)
    assert taken == {token, 0}
    assert one.mask() is None


def _allowed(one: DistinctStart) -> list[int]:
    mask = one.mask()
    assert mask is not None
    return np.flatnonzero(mask).tolist()
