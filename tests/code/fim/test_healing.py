import numpy as np
import pytest

from localdflash.code.fim.healing import Healing, Spellings, unfinished_word
from localdflash.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("    retu", "retu"),
        ("x = com", " com"),
        ("x = ", " "),
        ("def f(a):", "):"),
        ("    ", ""),
        ('    """', '"""'),
        ("x = 1", ""),
        ("", ""),
        ("naïv", "naïv"),
    ],
)
def test_the_word_at_the_cursor(line: str, word: str) -> None:
    assert unfinished_word(line) == word


@pytest.fixture(scope="module")
def spellings(tokenizer: Tokenizer) -> Spellings:
    return Spellings(tokenizer, tokenizer.vocab_size)


def test_any_way_of_drawing_spells_the_word(tokenizer: Tokenizer, spellings: Spellings) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        healing, drawn = Healing(spellings, " return"), list[int]()
        while (mask := healing.mask()) is not None:
            drawn.append(int(random.choice(np.flatnonzero(mask))))
            healing.advance(drawn[-1])
        assert tokenizer.spell(drawn).startswith(b" return")
        assert Healing(spellings, " return").count_allowed([*drawn, 1, 2]) == len(drawn) + 2
        assert Healing(spellings, " yield").count_allowed(drawn) < len(drawn)
