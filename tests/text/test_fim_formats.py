from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.base.errors import ModelError
from localdflash.text.fim_formats import FORMATS, build, detect, split, stop_ids
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
    assert sorted(tokenizer.spell(ids)) == sorted(b"PS")  # markers have no text
    assert stop_ids(fim, tokenizer) >= {*map(tokenizer.special, fim.markers), tokenizer.special("<|endoftext|>")}
    assert set(FORMATS) == {*FAMILIES, "codellama", "prefix"}


def test_bos_sentencepiece_spaces_and_stop_ids(
    make_vocabulary: MakeVocabulary, sentencepiece: Tokenizer, tokenizer: Tokenizer
) -> None:
    fim = detect(sentencepiece)
    assert fim.name == "codellama"
    ids = build(fim, sentencepiece, "def", "x")
    assert spelled(sentencepiece, ids) == "<s>▁<PRE> def▁<SUF>x▁<MID>"
    assert sentencepiece.special("▁<EOT>") in stop_ids(fim, sentencepiece)
    with_bos = Tokenizer.load(make_vocabulary(dict.fromkeys(["<|endoftext|>", "<s>", *PIPES], CONTROL), bos="<s>"))
    assert spelled(with_bos, build(detect(with_bos), with_bos, "", "")) == f"<s>{''.join(PIPES)}"
    names = [*PIPES, "<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
    assert stop_ids(FORMATS["qwen"], tokenizer) == set(map(tokenizer.special, names))


@pytest.mark.parametrize(
    ("specials", "metadata", "expected"),
    [
        ([*PLAIN, "<file_sep>"], {"general.architecture": "mellum"}, "mellum"),
        (PIPES, {"general.name": "Zeta", "general.basename": "qwen2.5-coder"}, "edits"),
        (["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"], {"general.name": "zeta-2"}, "edits"),
        (PIPES, {"general.name": "Sweep Next Edit 1.5B"}, "edits"),
        ([*PIPES, "<|editable_region_start|>"], {}, "edits"),
    ],
)
def test_metadata_tells_mellum_and_models_that_predict_edits(
    specials: list[str], metadata: dict[str, str], expected: str
) -> None:
    facts = Mock(has_special=specials.__contains__, metadata=metadata.get)
    if expected in FORMATS:
        assert detect(facts) is FORMATS[expected]
    else:
        with pytest.raises(ModelError, match=expected):
            detect(facts)


@given(
    st.lists(st.sampled_from([*PIPES, "<|endoftext|>", "<think>", "def ", "\n", "é"])).map("".join), st.text(max_size=9)
)
def test_code_that_spells_markers_stays_code(tokenizer: Tokenizer, prefix: str, suffix: str) -> None:
    ids = build(FORMATS["qwen"], tokenizer, prefix, suffix)
    first, second, third = map(tokenizer.special, PIPES)
    assert ids == [first, *tokenizer.encode(prefix), second, *tokenizer.encode(suffix), third]
    assert [ids.count(marker) for marker in (first, second, third)] == [1, 1, 1]


def test_a_chat_model_without_markers_is_refused(make_vocabulary: MakeVocabulary) -> None:
    tokenizer = Tokenizer.load(make_vocabulary({"<|endoftext|>": CONTROL, "<|fim_prefix|>": CONTROL}))
    with pytest.raises(ModelError, match="vocabulary: no fill-in-the-middle tokens"):
        detect(tokenizer)
    with pytest.raises(ModelError, match="fim_suffix"):
        build(FORMATS["qwen"], tokenizer, "a", "b")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>", ("P", "S")),
        ("<|fim_suffix|>S<|fim_prefix|>P<|fim_middle|>", ("P", "S")),
        ("<fim_prefix>P<fim_suffix>S<fim_middle>", ("P", "S")),
        ("<|fim_prefix|>P<|fim_suffix|>S", None),
        ("<|fim_prefix|>P<|fim_prefix|><|fim_suffix|>S<|fim_middle|>", None),
        ("[SUFFIX]S[PREFIX]P", None),
    ],
)
def test_a_client_s_prompt_is_split_into_prefix_and_suffix(text: str, parts: tuple[str, str] | None) -> None:
    assert split(text) == parts
