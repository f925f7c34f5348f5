from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import ModelError
from localdflash.text.fim import FORMATS, build, detect, format_of, split, stop_ids
from localdflash.text.tokenizer import Tokenizer

MakeVocabulary = Callable[..., Path]
CONTROL = 3
PIPES = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
PLAIN = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
# What each family's prompt for the prefix "P" and the suffix "S" looks like, and tokens that its vocabulary has.
FAMILIES = {
    "qwen": ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", [*PIPES, "<|fim_pad|>", "<|file_sep|>"], ""),
    "localdflash": ("<|fim_suffix|>S<|fim_prefix|>P<|fim_middle|>", [*PIPES, "<|fim_pad|>", "<|mask|>"], ""),
    "codegemma": ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", [*PIPES, "<|file_separator|>"], ""),
    "granite4": ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", [*PIPES, "<|end_of_text|>", "<|pad|>"], ""),
    "starcoder": ("<fim_prefix>P<fim_suffix>S<fim_middle>", [*PLAIN, "<filename>"], ""),
    "starcoder2": ("<fim_prefix>P<fim_suffix>S<fim_middle>", [*PLAIN, "<file_sep>"], ""),
    "granite": ("<fim_prefix>P<fim_suffix>S<fim_middle>", [*PLAIN, "<filename>"], "Granite 8b Code Base"),
    "localdflash-code": (
        "<fim_suffix>S<fim_prefix>P<fim_middle>",
        [*PLAIN, "<repo_name>", "<file_sep>"],
        "SmolLM2 135M localdflash code",
    ),
    "mellum": ("<fim_suffix>S<fim_prefix>P<fim_middle>", [*PLAIN, "<filename>"], "Mellum 4b Base"),
    "deepseek": (
        "<｜fim▁begin｜>P<｜fim▁hole｜>S<｜fim▁end｜>",
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<｜end▁of▁sentence｜>"],
        "",
    ),
    "codestral": ("[SUFFIX]S[PREFIX]P", ["[SUFFIX]", "[PREFIX]"], ""),
    "seed": (
        "<[fim-suffix]>S<[fim-prefix]>P<[fim-middle]>",
        ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", "<[end▁of▁sentence]>"],
        "",
    ),
    "glm": (
        "<|code_prefix|>P<|code_suffix|>S<|code_middle|>",
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
        "",
    ),
}


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.piece(token, special=True) for token in ids).decode()


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_is_detected_and_built(make_vocabulary: MakeVocabulary, name: str) -> None:
    prompt, specials, model_name = FAMILIES[name]
    kinds = dict.fromkeys(["<|endoftext|>", *specials], CONTROL)
    tokenizer = Tokenizer.load(make_vocabulary(kinds, {"general.name": model_name}))
    fim = detect(tokenizer)
    assert fim is FORMATS[name]
    ids = build(fim, tokenizer, "P", "S")
    assert spelled(tokenizer, ids) == prompt
    assert sorted(tokenizer.spell(ids)) == sorted(b"PS")
    markers = [tokenizer.special(marker) for marker in fim.markers]
    assert [ids.count(marker) for marker in markers] == [1] * len(markers)
    assert stop_ids(fim, tokenizer) >= {*markers, tokenizer.special("<|endoftext|>")}


def test_every_format_is_covered() -> None:
    assert set(FORMATS) == {*FAMILIES, "codellama", "prefix"}


def test_without_markers_the_model_goes_on_at_the_end_of_a_file(tokenizer: Tokenizer) -> None:
    form = format_of("prefix")
    assert build(form, tokenizer, "def add(", "\n \n") == tokenizer.encode("def add(")
    assert stop_ids(form, tokenizer) == tokenizer.ends
    with pytest.raises(ModelError, match="at the end of a file only"):
        build(form, tokenizer, "def add(", "\n    return first\n")
    with pytest.raises(ModelError, match="no such format; did you mean 'qwen'"):
        format_of("qwenn")


def test_codellama_spaces(sentencepiece: Tokenizer) -> None:
    fim = detect(sentencepiece)
    assert fim.name == "codellama"
    ids = build(fim, sentencepiece, "def", "x")
    assert ids[0] == sentencepiece.bos()
    assert spelled(sentencepiece, ids[1:]) == "▁<PRE> def▁<SUF>x▁<MID>"
    assert sentencepiece.special("▁<EOT>") in stop_ids(fim, sentencepiece)


def test_bos_first_where_the_model_wants_one(make_vocabulary: MakeVocabulary) -> None:
    specials = dict.fromkeys(["<|endoftext|>", "<s>", *PIPES], CONTROL)
    tokenizer = Tokenizer.load(make_vocabulary(specials, bos="<s>"))
    assert (
        spelled(tokenizer, build(detect(tokenizer), tokenizer, "", ""))
        == "<s><|fim_prefix|><|fim_suffix|><|fim_middle|>"
    )


@given(
    st.lists(st.sampled_from([*PIPES, "<|endoftext|>", "<think>", "def ", "\n", "é"])).map("".join), st.text(max_size=9)
)
def test_code_that_spells_markers_stays_code(tokenizer: Tokenizer, prefix: str, suffix: str) -> None:
    ids = build(FORMATS["qwen"], tokenizer, prefix, suffix)
    first, second, third = (tokenizer.special(marker) for marker in PIPES)
    assert ids == [first, *tokenizer.encode(prefix), second, *tokenizer.encode(suffix), third]
    assert [ids.count(marker) for marker in (first, second, third)] == [1, 1, 1]


def test_typing_only_appends_with_the_suffix_first(tokenizer: Tokenizer) -> None:
    before = build(FORMATS["localdflash"], tokenizer, "def add(first", "\n    return first\n")
    after = build(FORMATS["localdflash"], tokenizer, "def add(first, second", "\n    return first\n")
    assert after[: len(before) - 1] == before[:-1]


def test_stops_are_those_the_vocabulary_has(tokenizer: Tokenizer) -> None:
    stops = stop_ids(FORMATS["qwen"], tokenizer)
    names = [*PIPES, "<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
    assert stops == {tokenizer.special(name) for name in names}


def test_a_chat_model_without_markers(make_vocabulary: MakeVocabulary) -> None:
    tokenizer = Tokenizer.load(make_vocabulary({"<|endoftext|>": CONTROL, "<|fim_prefix|>": CONTROL}))
    with pytest.raises(ModelError, match="fill-in-the-middle") as caught:
        detect(tokenizer)
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="fim_suffix"):
        build(FORMATS["qwen"], tokenizer, "a", "b")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", ("P", "S")),
        ("<|fim_suffix|>S<|fim_prefix|>P<|fim_middle|>", ("P", "S")),
        ("<|fim_prefix|><|fim_suffix|><|fim_middle|>", ("", "")),
        ("<|fim_prefix|>P<|fim_suffix|>S", None),
        ("x<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", None),
        ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>x", None),
        ("<|fim_prefix|>P<|fim_prefix|><|fim_suffix|>S<|fim_middle|>", None),
    ],
)
def test_a_prompt_that_a_client_wrote_is_taken_apart(text: str, parts: tuple[str, str] | None) -> None:
    assert split(FORMATS["qwen"], text) == parts


def test_a_format_without_a_marker_for_the_middle_cannot_be_taken_apart() -> None:
    assert split(FORMATS["codestral"], "[SUFFIX]S[PREFIX]P") is None
