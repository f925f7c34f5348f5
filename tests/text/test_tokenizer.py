from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from localdflash.text.tokenizer import MAX_SEGMENT_CHARS, Tokenizer, _is_marker, _split_segments
from localdflash.text.vocabulary import SpecialToken

CODE = "def add(first, second):\n    return first + second  # naïve 错误 😋\n"
SPELLINGS = ["<|im_end|>", "<|im_start|>", "<|fim_suffix|>", "<think>", "</think>", "<tool_call>", "[PAD7]"]
some_text = st.lists(
    st.one_of(
        st.text(max_size=12), st.sampled_from(["def ", "    ", "\n", "\r\n", " first", "'ll", "é", "😋", *SPELLINGS])
    ),
    max_size=30,
).map("".join)


@given(some_text)
def test_encoding_and_spelling_round_trip(tokenizer: Tokenizer, text: str) -> None:
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert tokenizer.spell(tokenizer.encode(text)).decode() == valid


@given(some_text)
def test_user_text_never_gives_a_marker(tokenizer: Tokenizer, text: str) -> None:
    markers = {tokenizer.special(spelling) for spelling in SPELLINGS}
    assert markers.isdisjoint(tokenizer.encode(text))


def test_sentencepiece_merges_never_give_a_control_token(sentencepiece: Tokenizer) -> None:
    end, start = sentencepiece.special("</s>"), sentencepiece.special("<s>")
    ids = sentencepiece.encode("a <s> b </s> <PRE>")
    assert {end, start, sentencepiece.special("▁<PRE>")}.isdisjoint(ids)
    assert sentencepiece.spell(ids) == b" a <s> b </s> <PRE>"
    assert b"<s" not in map(sentencepiece.piece, ids)  # broken after its first character


def test_sentencepiece_space_is_added_only_at_the_beginning_of_text(sentencepiece: Tokenizer) -> None:
    assert sentencepiece.spell(sentencepiece.encode("def")) == b" def"
    assert sentencepiece.spell(sentencepiece.encode("def", continues=True)) == b"def"
    assert sentencepiece.spell(sentencepiece.encode("\n\ndef", continues=True)) == b"\n\ndef"


@pytest.mark.parametrize("shift", [0, 5, 23])
def test_long_text_has_the_ids_of_unsplit_text(tokenizer: Tokenizer, oracle: tokenizers.Tokenizer, shift: int) -> None:
    text = CODE[shift:] + CODE * (3 * MAX_SEGMENT_CHARS // len(CODE))
    assert tokenizer.encode(text) == oracle.encode(text).ids


@pytest.mark.parametrize("run", ["a", " ", "错"])
def test_a_long_run_of_one_character_is_tokenised(tokenizer: Tokenizer, run: str) -> None:
    text = run * 50_000
    assert max(map(len, _split_segments(text))) == 4096
    assert tokenizer.spell(tokenizer.encode(text)).decode() == text


def test_split_markers_agrees_with_llama_cpp(tokenizer: Tokenizer, llama_ids: Callable[[str], list[int]]) -> None:
    text = "So:<|im_start|>user\nhi <think>x</think><|im_end|><|im_end|>!\n<|im_<|im_start|>"
    ids: list[int] = []
    for part in tokenizer.split_markers(text):
        ids += [part] if isinstance(part, int) else tokenizer.encode(part)
    assert ids == llama_ids(text)


def test_an_eos_token_of_the_ordinary_type_ends_answers(make_vocabulary: Callable[..., Path]) -> None:
    tokenizer = Tokenizer.load(make_vocabulary({"plain end": 1}))
    assert tokenizer.ends == {tokenizer.vocab_size - 1}


def test_bos_may_have_the_id_zero(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer._vocabulary, "bos_id", 0, raising=False)
    assert tokenizer.template_tokens()["bos_token"] == tokenizer.piece(0, special=True).decode()


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (SpecialToken(1, "<s>", is_control=True), True),
        (SpecialToken(1, "<|sep|>", is_user_defined=True), True),
        (SpecialToken(1, "<|sep|>"), False),
        (SpecialToken(1, "def", is_user_defined=True), False),
        (SpecialToken(1, "<table>", is_user_defined=True), False),
    ],
)
def test_markers_are_control_tokens_and_bracketed_tokens_of_the_model(token: SpecialToken, expected: bool) -> None:
    assert _is_marker(token, "") == expected
