"""Answers in each family's format: decoding in any pieces, continuing, and thoughts in the history."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.text.answer_format import AnswerStart, FirstPart, adapt_template_variables, start_answer
from localdflash.text.chat_template import TemplateMessage, encode_answer, render
from localdflash.text.stream import TextDecoder
from localdflash.text.thoughts import join_thoughts, split_thoughts
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import PromptStretch
from tests.support.chat_formats import TEMPLATES, vocabularies
from tests.support.scripted_pair import spelled

__all__ = ["vocabularies"]

FAMILIES = sorted(TEMPLATES)
ASKED = [TemplateMessage("user", "why?")]


@pytest.fixture(scope="session")
def models(vocabularies: Mapping[str, Path]) -> dict[str, Tokenizer]:
    return {family: Tokenizer.load(path) for family, path in vocabularies.items()}


def prompt_of(tokenizer: Tokenizer, messages: Sequence[TemplateMessage], **switches: bool | str) -> list[PromptStretch]:
    template = tokenizer.chat_template() or ""
    known = {**tokenizer.template_tokens(), **adapt_template_variables(template, switches)}
    return render(template, messages, variables=known)


def start_of(
    tokenizer: Tokenizer, begun: str = "", *, first_part: FirstPart = "", **switches: bool | str
) -> AnswerStart:
    return start_answer(tokenizer, prompt_of(tokenizer, ASKED, **switches), begun, first_part=first_part)


def text_of(prompt: Iterable[PromptStretch]) -> str:
    return "".join(piece.text for piece in prompt)


def read(decoder: TextDecoder, ids: Sequence[int], cuts: Sequence[int] = ()) -> str:
    pieces = [ids[a:b] for a, b in pairwise([0, *sorted(cuts), len(ids)])]
    return "".join(map(decoder.push, pieces)) + decoder.finish()


# Tokens that a model generates, by family.

THINK = {
    "harmony": ("<|channel|>", "analysis", "<|message|>"),
    "qwen3": ("<think>", "\n"),
    "qwen3.5": (),  # part of its template
    "gemma": ("<|channel>", "thought\n"),
}
ANSWER = {
    "harmony": ("<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"),
    "qwen3": ("\n", "</think>", "\n\n"),
    "qwen3.5": ("\n", "</think>", "\n\n"),
    "gemma": ("\n", "<channel|>"),
}

words = st.text(alphabet="aé错😋\u0301 \n<|think>/", max_size=10)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15)
@given(data=st.data(), thoughts=words, answer=words)
def test_answer_text_does_not_depend_on_chunking(
    models: Mapping[str, Tokenizer], family: str, data: st.DataObject, thoughts: str, answer: str
) -> None:
    tokenizer = models[family]
    ids = spelled(tokenizer, *THINK[family])
    ids += tokenizer.encode(thoughts) + spelled(tokenizer, *ANSWER[family]) + tokenizer.encode(answer)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=6))
    text = read(start_of(tokenizer, enable_thinking=True).make_decoder(tokenizer), ids, cuts)
    thought = thoughts.strip("\n")
    assert text == join_thoughts(thought, answer if family == "harmony" and not thought else answer.lstrip("\n"))


# Harmony

COMMENT = ("<|start|>", "assistant", "<|channel|>", "commentary", "<|message|>")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            (*THINK["harmony"], "one", "<|end|>", "<|start|>", "assistant", *THINK["harmony"], "two"),
            "<think>\none\n\ntwo",
        ),
        (
            ("<|channel|>", "commentary to=functions.f ", "<|constrain|>", "json", "<|message|>", '{"a":1}'),
            '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}',
        ),
        (
            (*THINK["harmony"], "hm", "<|end|>", "<|start|>", "assistant to=functions.f", *COMMENT[2:], "{}"),
            "<think>\nhm\n</think>\n\n<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}",
        ),
        (
            (" to=functions.f", *COMMENT[2:], "{}"),
            "<|start|>assistant to=functions.f<|channel|>commentary<|message|>{}",
        ),
        (("<|channel|>", "ana"), ""),
        ((*THINK["harmony"], "hm", "<|channel|>", "final", "<|message|>", "yes"), "<think>\nhm\n</think>\n\nyes"),
        (("too many",), "too many"),
    ],
)
def test_harmony_messages_of_every_channel(models: Mapping[str, Tokenizer], parts: Sequence[str], text: str) -> None:
    tokenizer = models["harmony"]
    ids = spelled(tokenizer, *parts)
    make_decoder = start_of(tokenizer).make_decoder
    assert read(make_decoder(tokenizer), ids, range(len(ids))) == read(make_decoder(tokenizer), ids) == text


# Continued answers, and answers without thoughts

BEGUN = ["so", "<think>\nbecau", "<think>\nbecause\n</think>\n\n", "<think>\nbecause\n</think>\n\nso"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("begun", BEGUN)
def test_a_partial_answer_is_continued_in_the_family_s_format(
    models: Mapping[str, Tokenizer], family: str, begun: str
) -> None:
    tokenizer = models[family]
    thoughts, answer, thinking = split_thoughts(begun)
    start = start_of(tokenizer, begun, enable_thinking=True)
    think, closing_tokens = "".join(THINK[family]), "".join(ANSWER[family])
    is_closed, has_no_thoughts = thoughts and not thinking, answer and not thoughts
    if family == "harmony":
        closing_tokens = "<|end|><|start|>assistant" if is_closed and not answer else closing_tokens
        closing_tokens = "<|channel|>final<|message|>" if has_no_thoughts else closing_tokens
    opened = think if thoughts else ""
    closing = closing_tokens if is_closed or (has_no_thoughts and family in ("harmony", "qwen3.5")) else ""
    assert text_of(start.added) == opened + thoughts + closing + answer
    more = " more" if thinking or answer else ""
    assert read(start.make_decoder(tokenizer), spelled(tokenizer, more) if more else []) == more


@pytest.mark.parametrize("family", FAMILIES)
def test_a_grammar_or_a_required_call_skips_the_thoughts(models: Mapping[str, Tokenizer], family: str) -> None:
    tokenizer = models[family]
    ends = {"harmony": "<|channel|>final<|message|>", "qwen3.5": "\n</think>\n\n", "qwen3": "", "gemma": ""}
    for begun in ("", "so"):
        start = start_of(tokenizer, begun, first_part="text", enable_thinking=True)
        assert text_of(start.added) == ends[family] + begun
        assert read(start.make_decoder(tokenizer), tokenizer.encode('{"a": 1}')) == '{"a": 1}'
    call = start_of(tokenizer, first_part="call", enable_thinking=True)
    assert text_of(call.added) == ("" if family == "harmony" else ends[family])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("thinks", [True, False])
def test_a_continued_answer_has_the_cached_ids(models: Mapping[str, Tokenizer], family: str, thinks: bool) -> None:
    tokenizer = models[family]
    ids = spelled(tokenizer, *THINK[family], "because", *(() if thinks else (*ANSWER[family], "so")))
    text = read(start_of(tokenizer, enable_thinking=True).make_decoder(tokenizer), ids)
    assert encode_answer(tokenizer, start_of(tokenizer, text, enable_thinking=True).added) == ids


# Conversations

TALK = [*ASKED, TemplateMessage("assistant", "<think>\nbecause\n</think>\n\nso"), TemplateMessage("user", "and?")]


def test_templates_that_drop_earlier_thoughts_get_them_as_a_field(models: Mapping[str, Tokenizer]) -> None:
    for family in FAMILIES:
        prompt = text_of(prompt_of(models[family], TALK))
        assert ("because" in prompt, "so" in prompt) == (False, True), family
    named = "{% for m in messages %}[{{ m.thinking }}]{{ m.content }}|{% endfor %}"
    assert text_of(render(named, TALK)) == "[]why?|[because]so|[]and?|"
    unmarked = [*ASKED, TemplateMessage("user", "<think>\nx\n</think>\n\ny")]
    assert text_of(render(named, unmarked)).endswith("[]<think>\nx\n</think>\n\ny|")
    plain = "{% for m in messages %}{{ m.content }}|{% endfor %}"
    assert text_of(render(plain, TALK)) == "why?|<think>\nbecause\n</think>\n\nso|and?|"
