import random

from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.lab.train.examples import (
    END,
    IM_END,
    IM_START,
    KINDS,
    MIDDLE,
    PREFIX,
    SUFFIX,
    Example,
    ExamplePiece,
    Special,
    examples,
)

FIM = ("fim_line", "fim_block")
LINES = st.lists(
    st.from_regex(r" {0,8}[a-z#=(\"é\x0c\u2028<|_0-9]{0,30}", fullmatch=True) | st.just("def f(x):"), max_size=60
)


def of(source: str, seed: int = 0) -> list[Example]:
    return list(examples(source, random.Random(f"{seed} {source}")))


def text(pieces: tuple[ExamplePiece, ...]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))


def specials(pieces: tuple[ExamplePiece, ...]) -> list[Special]:
    return [piece for piece in pieces if isinstance(piece, Special)]


def put_together(example: Example) -> tuple[str, str, str]:
    """Return prefix, middle and suffix of a FIM example."""
    first, one, second, two, last = example.prompt
    assert last == MIDDLE
    assert isinstance(one, str)
    assert isinstance(two, str)
    middle, end = example.answer
    assert isinstance(middle, str)
    assert end == END
    assert {first, second} == {PREFIX, SUFFIX}
    prefix, suffix = (one, two) if first == PREFIX else (two, one)
    return prefix, middle, suffix


@settings(max_examples=40)
@given(lines=LINES, seed=st.integers(0, 99))
def test_any_source_gives_valid_examples(lines: list[str], seed: int) -> None:
    source = "\n".join(lines * 5)
    for example in of(source, seed):
        assert example.kind in KINDS
        if example.kind in FIM:
            assert "".join(put_together(example)) in source
        if example.kind == "code":
            assert example.prompt == ()
            assert text(example.answer) in source


def test_the_spelling_of_a_special_token_stays_text() -> None:
    line = '    stop = "<|endoftext|><|im_end|><|fim_middle|><|mask|>"\n'
    source = 'def end(text, stops):\n    """Return where text ends."""\n' + line * 20 + "    return text\n"
    kinds = set()
    for example in (example for seed in range(20) for example in of(source, seed)):
        kinds.add(example.kind)
        expected = {
            "code": [END],
            "fim_line": [PREFIX, SUFFIX, MIDDLE, END],
            "fim_block": [PREFIX, SUFFIX, MIDDLE, END],
        }.get(example.kind, [IM_START, IM_END, IM_START, IM_END, END])
        assert sorted(specials(example.prompt) + specials(example.answer)) == sorted(expected)
        assert "<|" in text(example.prompt) + text(example.answer)
    assert kinds == set(KINDS)
