"""GGUF vocabularies read without llama.cpp equal llama.cpp's: ids, special tokens, end ids and bytes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.models.weights.gguf import read_header
from localdflash.text.gguf_vocabulary import GGUFVocabulary, open_vocabulary
from localdflash.text.llama_vocabulary import LlamaVocabulary
from localdflash.text.tokenizer import read_vocabulary
from localdflash.text.vocabulary import ModelVocabulary
from tests.text.conftest import CODE, CONTROL, NORMAL, USER_DEFINED, sentencepiece_file

BYTE_PAIR = ("gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe", "gpt-4o", "tekken")
SPECIALS = {
    "llama-bpe": dict.fromkeys(("<|eot_id|>", "<|eom_id|>", "<s>", "</s>"), CONTROL),
    "gpt-4o": dict.fromkeys(("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>"), CONTROL),
    "tekken": {"<PRE>": NORMAL, "<|endoftext|>": NORMAL, "[REF]": USER_DEFINED, f"<|{'x' * 200}|>": CONTROL},
}
Pairs = dict[str, tuple[ModelVocabulary, ModelVocabulary]]
SPACES = [" def", "    ", "      ", "\n\n", "\r\n", "\t", "\u00a0", "\u2003"]
WORDS = ["'ll", "'LL", "DON'T", "12345", "É", "日本", "ñ", "\u0301", "😋", "\u0e01\u0e33", "::", "/", "HTTPServer"]
MARKERS = ["<table>", "<think>", "<|im_end|>", "<s", "</s>", "[REF]"]
fragments = st.sampled_from(SPACES + WORDS + MARKERS)
texts = st.lists(st.one_of(fragments, st.text(max_size=6)), max_size=20).map("".join)


@pytest.fixture(scope="module")
def pairs(make_vocabulary: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Return localdflash's and llama.cpp's vocabulary of one file, for every kind."""
    ordinary = dict.fromkeys(CODE, CONTROL) | dict.fromkeys(("<think>", "      ", "<table>"), USER_DEFINED)
    files = {
        pre: make_vocabulary(SPECIALS.get(pre, ordinary), pre=pre, bos="<s>" if pre == "llama-bpe" else None)
        for pre in BYTE_PAIR
    }
    files["llama"] = sentencepiece_file(tmp_path_factory.mktemp("vocabulary"), tie=False)
    return {kind: (read_vocabulary(path), LlamaVocabulary(path)) for kind, path in files.items()}


@pytest.mark.parametrize("kind", [*BYTE_PAIR, "llama"])
def test_special_tokens_end_ids_and_bytes_equal_llama_cpp(pairs: Pairs, kind: str) -> None:
    ours, theirs = pairs[kind]
    assert isinstance(ours, GGUFVocabulary)
    assert ours.special_tokens == theirs.special_tokens
    for name in ("size", "bos_id", "eos_id", "adds_bos", "end_ids"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for token in range(ours.size):
        for special in (False, True):
            assert ours.decode_token(token, special=special) == theirs.decode_token(token, special=special)


@pytest.mark.parametrize("kind", [*BYTE_PAIR, "llama"])
@settings(max_examples=25)
@given(text=texts)
def test_ids_equal_llama_cpp(pairs: Pairs, kind: str, text: str) -> None:
    ours, theirs = pairs[kind]
    valid = text.encode("utf-8", "replace").decode()
    assert ours.encode(valid) == theirs.encode(valid)


@pytest.mark.parametrize(
    "fault",
    [
        {"tokens": ["a", 1]},
        {"tokens": ["a", "b\0c"]},
        {"token_type": [NORMAL]},
        {"merges": ["ab"]},
        {"merges": ["a é"]},
        {"bos_token_id": "<s>"},
        {"add_bos_token": 1},
    ],
    ids=str,
)
def test_a_malformed_vocabulary_is_left_to_llama_cpp(vocabulary_file: Path, fault: dict[str, object]) -> None:
    header = read_header(vocabulary_file)
    assert open_vocabulary(header)
    faults = {f"tokenizer.ggml.{key}": value for key, value in fault.items()}
    assert open_vocabulary(replace(header, metadata={**header.metadata, **faults})) is None
