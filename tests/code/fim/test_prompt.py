import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import localdflash
from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.encoder import Encoder, keep_first, keep_last
from localdflash.code.fim.prompt import MIN_ANSWER_TOKENS, Gap, InfillPrompt, assemble
from localdflash.text.fim_formats import FORMATS, FimFormat
from localdflash.text.tokenizer import Tokenizer

PROMPTS = Path(localdflash.__file__).parents[1] / "lab" / "bench" / "prompts"
CODE = "".join(path.read_text("utf-8") for path in sorted(PROMPTS.glob("*.py")))
LINES = CODE.splitlines(keepends=True)[:2000]
ABOVE, BELOW = "".join(LINES[:1000]), "\n" + "".join(LINES[1060:])
GAP = Gap("a.py", "python", ABOVE, "    ret", BELOW)


def prompt(
    encoder: Encoder, fim: FimFormat, gap: Gap = GAP, others: tuple[ContextPiece, ...] = (), context: int = 1024
) -> InfillPrompt:
    return assemble(encoder, fim, context, gap, others, 96)


def tokens(made: InfillPrompt, kind: str) -> int:
    return sum(part.tokens for part in made.parts if part.kind == kind)


@pytest.mark.parametrize("text", [CODE[:20_000], "a\n\n\n  b\n", "\n\n", "\tif x:\n\t\ty\n", "é漢\n😀"])
def test_lines_are_encoded_as_the_text_is(encoder: Encoder, tokenizer: Tokenizer, text: str) -> None:
    assert encoder.text(text) == tokenizer.encode(text)


@pytest.mark.parametrize("name", ["localdflash", "granite4", "qwen"])
def test_the_budget_holds(encoder: Encoder, name: str) -> None:
    others = tuple(ContextPiece("open", f"o{i}.py", CODE[i * 2000 : i * 2000 + 1500]) for i in range(5))
    for context in (256, 1024, 4096, 32768):
        made = prompt(encoder, FORMATS[name], GAP, others, context)
        assert len(made.ids) + MIN_ANSWER_TOKENS <= context
        assert len(made.ids) <= 2048
        assert tokens(made, "open") <= made.budget.head == int(made.budget.prompt * 0.35)
        assert tokens(made, "suffix") <= made.budget.suffix == int(made.budget.prompt * 0.2)
        assert tokens(made, "prefix") <= made.budget.prefix
        assert context == 256 or tokens(made, "prefix") > made.budget.prefix // 2


def test_the_next_key_only_adds(encoder: Encoder, fim: FimFormat) -> None:
    """While a user types from one anchor, all but the newest ids, or those of the line, are kept."""
    typed, before = "".join(LINES[1000:1012]), list[int]()
    for end in range(1, len(typed)):
        ids = prompt(encoder, fim, replace(GAP, middle=typed[:end])).ids
        shared = next((i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(before))
        entered = typed[:end].rpartition("\n")[2].strip() == ""
        line = typed[:end].rstrip().rpartition("\n")[2] if entered else ""
        assert not before or len(before) - shared <= 4 + len(encoder.text(line))
        before = ids


def test_code_of_the_file_itself_comes_first_without_what_the_prompt_has(encoder: Encoder, fim: FimFormat) -> None:
    near, far = next(line.strip() for line in LINES[980:] if len(line) > 20), "def far_away(a):\n    'Far.'"
    others = (ContextPiece("import", "b.py", CODE[:4000]), ContextPiece("definition", "a.py", f"{near}\n\n{far}", 0.5))
    other, own, *_ = prompt(encoder, fim, GAP, others).parts
    assert (own.name, own.text, own.cut, other.cut) == ("a.py", far, False, True)
    seen = prompt(encoder, fim, GAP, (replace(others[1], text=near),)).parts
    assert [part.kind for part in seen] == ["prefix", "middle", "suffix"]


@pytest.mark.parametrize("line", ["", "retu", "return x"])
@pytest.mark.parametrize("name", ["localdflash", "qwen"])
def test_after_enter_the_prompt_is_that_of_opening_the_place(encoder: Encoder, name: str, line: str) -> None:
    typed = "    x = 1\n\n        "
    gap = replace(GAP, prefix="".join(LINES[:20]))
    entered = prompt(encoder, FORMATS[name], replace(gap, middle=typed + line))
    assert entered.ids == prompt(encoder, FORMATS[name], replace(gap, prefix=gap.prefix + typed, middle=line)).ids
    assert tokens(entered, "middle") == len(encoder.text(line))


@pytest.mark.parametrize("text", ["x" * 10_000_000, "x = 1\n" * 1_700_000])
def test_huge_texts_are_cut_in_time(encoder: Encoder, fim: FimFormat, text: str) -> None:
    began = time.perf_counter()
    made = prompt(encoder, fim, Gap("a", "", text, text, text))
    assert time.perf_counter() - began < 2
    assert len(made.ids) <= made.budget.prompt + 8
    assert any(part.cut for part in made.parts)


@given(st.text(alphabet="ab \n漢", max_size=300), st.integers(0, 60), st.integers(0, 100))
def test_cuts_are_ends_of_the_text_that_fit(tokenizer: Tokenizer, text: str, room: int, first_line: int) -> None:
    encoder = Encoder(tokenizer)
    first, last = keep_first(encoder, text, room), keep_last(encoder, text, room, first_line)
    assert first.start == 0
    assert last.end == len(text)
    for cut in (first, last):
        assert len(cut.ids) <= room
        if cut.ids:
            assert tokenizer.spell(cut.ids).decode() == text[cut.start : cut.end]
    if len(encoder.text(text)) <= room and len(text) <= room * 10:
        assert (first.end, last.start) == (len(text), 0)
