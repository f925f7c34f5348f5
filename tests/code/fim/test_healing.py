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


@pytest.mark.parametrize("word", [" ret", "é", "self", ".appe", "🙂"])
def test_the_tokens_that_a_word_may_begin_with(tokenizer: Tokenizer, spellings: Spellings, word: str) -> None:
    wanted = word.encode()
    mask = Healing(spellings, word).mask()
    assert mask is not None
    expected = [
        bool(piece) and (piece.startswith(wanted) or wanted.startswith(piece))
        for piece in map(tokenizer.piece, range(tokenizer.vocab_size))
    ]
    assert mask.tolist() == expected


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
