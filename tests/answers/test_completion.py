from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.answers import completion
from localdflash.answers.completion import complete, offset_of, prepare, prepare_text
from localdflash.backend.options import Options
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import ContextOverflow, ModelError, UsageError
from localdflash.loading.load import LoadedPair
from localdflash.text import fim

GREEDY = SamplingParams()
CONTEXT = 256


@pytest.fixture(scope="module")
def loaded(tiny_pair: Path) -> Iterator[LoadedPair]:
    with LoadedPair(Options(str(tiny_pair / "target.gguf"), threads=1, context=CONTEXT, backend="llama.cpp")) as loaded:
        yield loaded


# Line and column


@given(st.text(alphabet="ab\n\r\x0b\x0c\x1c\x85\u2028é漢\U0001f600 ", max_size=40), st.data())
def test_every_place_of_a_text_is_a_line_and_a_column(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text[:offset]
    line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
    if text[offset - 1 : offset + 1] == "\r\n":
        with pytest.raises(UsageError, match="column"):
            offset_of(text, line, column)  # between the two characters of a line end
    else:
        assert offset_of(text, line, column) == offset


@pytest.mark.parametrize(
    ("text", "line", "column", "offset"),
    [
        ("", 1, 1, 0),
        ("ab", 1, 3, 2),
        ("ab\n", 2, 1, 3),
        ("ab\r\ncd\r\n", 2, 1, 4),
        ("ab\r\ncd\r\n", 1, 3, 2),
        ("a\x0cb\nc", 2, 1, 4),
        ("é漢\n😀x", 2, 2, 4),
    ],
)
def test_places(text: str, line: int, column: int, offset: int) -> None:
    assert offset_of(text, line, column) == offset


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("ab\n", 3, 1, "line 3 is outside the file, whose last line is 2"),
        ("ab\n", 0, 1, "line 0 is outside"),
        ("ab\n", -1, 1, "line -1 is outside"),
        ("ab\n", 1, 4, "column 4 is outside line 1, whose last column is 3"),
        ("ab\r\n", 1, 4, "column 4 is outside line 1, whose last column is 3"),
        ("ab", 1, 0, "column 0 is outside line 1"),
        ("", 1, 2, "column 2 is outside line 1, whose last column is 1"),
    ],
)
def test_places_outside_are_named(text: str, line: int, column: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        offset_of(text, line, column)


# The prompt


def test_the_prompt_is_prefix_and_suffix_in_the_models_form(loaded: LoadedPair) -> None:
    tokenizer = loaded.tokenizer
    answer = complete(loaded, "def f(", "):\n", 8, GREEDY)
    assert answer.request.ids == [
        tokenizer.special("<|fim_suffix|>"),
        *tokenizer.encode("):\n"),
        tokenizer.special("<|fim_prefix|>"),
        *tokenizer.encode("def f("),
        tokenizer.special("<|fim_middle|>"),
    ]
    assert {tokenizer.special(name) for name in ("<|endoftext|>", "<|fim_prefix|>")} <= answer.request.ends


def test_one_line_is_the_first_line_of_the_whole(loaded: LoadedPair) -> None:
    for prefix in ("def f(", "class A:\n    ", "x = [", "", "import "):
        whole = "".join(complete(loaded, prefix, "\n", 80, GREEDY))
        line = "".join(complete(loaded, prefix, "\n", 80, GREEDY, one_line=True))
        assert line == whole.partition("\n")[0]


def test_a_cancelled_completion_says_so(loaded: LoadedPair) -> None:
    calls = 0

    def cancelled() -> bool:
        nonlocal calls
        calls += 1
        return calls > 6

    answer = complete(loaded, "def f(", "\n", 200, SamplingParams(temperature=2.0, seed=1), cancelled=cancelled)
    assert 0 < len(list(answer)) < 200
    assert answer.request.finish == "cancelled"
    assert len(answer.ids) < 100


def test_a_model_without_the_markers_is_refused(loaded: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fim, "FORMATS", {"glm": fim.FORMATS["glm"]})
    with pytest.raises(ModelError, match="no fill-in-the-middle tokens"):
        complete(loaded, "a", "b", 8, GREEDY)


# The context


def test_what_does_not_fit_names_both_numbers(loaded: LoadedPair) -> None:
    with pytest.raises(ContextOverflow, match=rf"the prompt has \d{{3,}} tokens .* 20: the context holds {CONTEXT};"):
        complete(loaded, "value = 12\n" * 100, "", 20, GREEDY)


def test_the_last_token_of_the_context_can_be_used(loaded: LoadedPair) -> None:
    prompt = len(complete(loaded, "def f(", "\n", 8, GREEDY).request.ids)
    answer = complete(loaded, "def f(", "\n", CONTEXT - prompt, SamplingParams(temperature=3.0, seed=5))
    list(answer)
    assert prompt + len(answer.ids) <= CONTEXT
    with pytest.raises(ContextOverflow):
        complete(loaded, "def f(", "\n", CONTEXT - prompt + 1, GREEDY)


def trimmed(loaded: LoadedPair, prefix: str, suffix: str, limit: int = 20) -> tuple[str, str]:
    """What is left of prefix and suffix."""
    ids = list(complete(loaded, prefix, suffix, limit, GREEDY, trim=True).request.ids)
    assert len(ids) <= CONTEXT - limit
    middle = ids.index(loaded.tokenizer.special("<|fim_prefix|>"))
    return loaded.tokenizer.spell(ids[middle:]).decode(), loaded.tokenizer.spell(ids[:middle]).decode()


LINES = st.lists(st.sampled_from(["x = 1\n", "\n", "    return value + 12\n", "# é\n", "def f(a, b):\n"]), max_size=120)


@given(before=LINES, after=LINES, column=st.integers(0, 8))
def test_trimming_keeps_whole_lines_next_to_the_cursor(
    loaded: LoadedPair, before: list[str], after: list[str], column: int
) -> None:
    prefix, suffix = "".join(before) + "value = 12"[:column], "".join(after)
    kept_before, kept_after = trimmed(loaded, prefix, suffix)
    assert prefix.endswith(kept_before)
    assert suffix.startswith(kept_after)
    lost = prefix.removesuffix(kept_before)
    assert lost == "" or lost.endswith("\n")
    assert kept_after in ("", suffix) or kept_after.endswith("\n")


def test_trimming_uses_the_room(loaded: LoadedPair) -> None:
    line = "value = 12\n"
    kept_before, kept_after = trimmed(loaded, line * 100, line * 100)
    tokens = len(loaded.tokenizer.encode(line))
    room = CONTEXT - 20 - 3
    left = room - len(loaded.tokenizer.encode(kept_before)) - len(loaded.tokenizer.encode(kept_after))
    assert 0 <= left < 2 * tokens
    assert len(kept_before) > 2 * len(kept_after) > 0


def test_what_fits_is_not_trimmed(loaded: LoadedPair) -> None:
    assert trimmed(loaded, "a = 1\nb = ", "\nc = 3\n") == ("a = 1\nb = ", "\nc = 3\n")


def test_a_line_that_does_not_fit_is_refused(loaded: LoadedPair) -> None:
    with pytest.raises(ContextOverflow, match="the line before the cursor alone does not fit into 236 tokens"):
        trimmed(loaded, "x = 1\n" + "12 + " * 300, "\n")


def test_an_answer_that_leaves_no_room(loaded: LoadedPair) -> None:
    with pytest.raises(ContextOverflow, match=f"the answer may have {CONTEXT}: the context holds {CONTEXT}"):
        complete(loaded, "x = 1\n", "", CONTEXT, GREEDY, trim=True)


# Other files


def test_other_files_stand_at_the_head_where_the_format_has_a_place(
    loaded: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "fim_format", lambda: fim.FORMATS["qwen"])
    files = [fim.SourceFile("a.py", "a = 1\n\n"), fim.SourceFile("b.py", "b = 2")]
    prepared = prepare(loaded, "def f(", "):\n", 8, GREEDY, files=files, trim=True)
    spelled = b"".join(loaded.tokenizer.piece(token, special=True) for token in prepared.request.ids).decode()
    assert spelled == (
        "<|repo_name|>repository\n<|file_sep|>a.py\na = 1\n<|file_sep|>b.py\nb = 2\n<|file_sep|>current\n"
        "<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>"
    )
    assert not prepared.truncated


def test_only_the_newest_files_stay_where_room_is_short(loaded: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "fim_format", lambda: fim.FORMATS["qwen"])
    files = [fim.SourceFile(f"{name}.py", "value = 12\n" * 12) for name in "abcdef"]
    ids = list(prepare(loaded, "def f(", "):\n", 8, GREEDY, files=files, trim=True).request.ids)
    spelled = loaded.tokenizer.spell(ids).decode()
    kept = [name for name in "abcdef" if f"{name}.py" in spelled]
    assert kept == list("abcdef")[-len(kept) :]
    assert 0 < len(kept) < 6
    assert len(ids) <= CONTEXT - 8


def test_drafts_may_be_copied_from_other_files(loaded: LoadedPair, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [fim.SourceFile("a.py", "a = 1\n"), fim.SourceFile("b.py", ""), fim.SourceFile("c.py", "c = 3\n" * 40)]
    request = prepare(loaded, "", "", 8, GREEDY, files=files).request
    assert request.documents == [loaded.tokenizer.encode(files[0].text), loaded.tokenizer.encode(files[2].text)]
    monkeypatch.setattr(completion, "MOST_DOCUMENT_TOKENS", 10)
    (newest,) = prepare(loaded, "", "", 8, GREEDY, files=files).request.documents
    assert list(newest) == loaded.tokenizer.encode(files[2].text)[:10]


def test_a_trimmed_prompt_says_so(loaded: LoadedPair) -> None:
    assert prepare(loaded, "value = 12\n" * 100, "", 20, GREEDY, trim=True).truncated
    assert not prepare(loaded, "value = 12\n", "", 20, GREEDY, trim=True).truncated


# A prompt as it stands


def test_markers_of_a_prompt_are_markers(loaded: LoadedPair) -> None:
    tokenizer = loaded.tokenizer
    ids = prepare_text(loaded, "<|im_start|>user", 8, GREEDY).request.ids
    assert ids == [tokenizer.special("<|im_start|>"), *tokenizer.encode("user")]
    assert prepare_text(loaded, ids, 8, GREEDY).request.ids == ids


@pytest.mark.parametrize("prompt", ["", [], [-1], [10**6]])
def test_prompts_that_are_none(loaded: LoadedPair, prompt: str | list[int]) -> None:
    with pytest.raises(UsageError, match=r"^prompt: "):
        prepare_text(loaded, prompt, 8, GREEDY)
