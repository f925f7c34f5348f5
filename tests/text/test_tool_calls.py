"""Tool calls in each family's syntax: parsed in any pieces, reported incrementally, never lost."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.text.chat_template import CalledTool, TemplateMessage
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import CallReader, call_reader, is_value_open, parse_gemma_object
from localdflash.text.tools_in_words import describe_in_words
from tests.support.chat_formats import tool_vocabularies
from tests.text.test_thoughts import cut

__all__ = ["tool_vocabularies"]

TOOLS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "g.h-1": {"type": "object", "properties": {}},
}
FAMILIES = ["hermes", "tags", "gemma", "harmony", "llama", "words"]


@pytest.fixture(scope="module")
def models(tool_vocabularies: Mapping[str, Path]) -> dict[str, Tokenizer]:
    return {family: Tokenizer.load(path) for family, path in tool_vocabularies.items()}


def reader_of(tokenizer: Tokenizer) -> CallReader:
    return call_reader(tokenizer, TOOLS)


def read(reader: CallReader, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the text, and each call with its arguments as text."""
    answer, calls = "", list[tuple[str, str]]()
    for text, deltas in [*(reader.push(piece) for piece in pieces), reader.finish()]:
        answer += text
        for delta in deltas:
            if delta.index == len(calls):
                assert delta.name
                calls.append((delta.name, ""))
            else:
                assert (delta.index, delta.name) == (len(calls) - 1, "")
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    return answer, calls


def written(family: str, name: str, arguments: dict[str, Any]) -> str:
    """Return a call in the syntax of a family."""
    text = json.dumps(arguments, ensure_ascii=False)
    match family:
        case "hermes" | "words":
            return f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
        case "tags":
            values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
            tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
            return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"
        case "gemma":
            return f"<|tool_call>call:{name}{gemma(arguments)}<tool_call|>"
        case "harmony":
            return f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>{text}"
    return f'{{"name": "{name}", "parameters": {text}}}'


def gemma(value: Any) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{key}:{gemma(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ",".join(map(gemma, value)) + "]"
        case str():
            return f'<|"|>{value}<|"|>'
    return json.dumps(value)


marks = st.sampled_from(["</tool_call>", "<tool_call|>", "<tool_call>", "<parameter=city>"])  # in a value they are text
words = st.text(alphabet='aé错 {}[],:"\\\n<>/', max_size=12) | st.lists(
    marks | st.sampled_from('a"\n'), max_size=4
).map("".join)
arguments = st.fixed_dictionaries({"city": words}, optional={"days": st.integers(-5, 5)})


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), given=arguments, before=st.sampled_from(["", "I look.", "I look.\n\n", "a < b\n<"]))
def test_a_parsed_call_does_not_depend_on_chunking(
    models: Mapping[str, Tokenizer], family: str, data: st.DataObject, given: dict[str, Any], before: str
) -> None:
    before = "" if family == "llama" else before
    text = before + written(family, "f", given)
    answer, calls = read(reader_of(models[family]), data.draw(cut(text)))
    assert answer == before.rstrip("\n")
    assert [(name, json.loads(arguments_text)) for name, arguments_text in calls] == [("f", given)]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_parsing_of_any_text_does_not_depend_on_chunking(
    models: Mapping[str, Tokenizer], family: str, data: st.DataObject
) -> None:
    whole = written(family, "f", {"city": "Oslo", "days": 2})
    pieces = [whole[:at] for at in (5, 20, 40)] + [whole[at:] for at in (5, 20, 40)]
    some = st.sampled_from([*pieces, whole, "text", "\n", "{", "}", '"', "<tool_call>", "</tool_call>", "<tool_call|>"])
    text = "".join(data.draw(st.lists(some, max_size=6)))
    assert read(reader_of(models[family]), data.draw(cut(text))) == read(reader_of(models[family]), [text])


@pytest.mark.parametrize("family", ["hermes", "tags", "gemma", "llama", "words"])
def test_several_calls_in_one_answer(models: Mapping[str, Tokenizer], family: str) -> None:
    given: list[tuple[str, Any]] = [("f", {"city": "Oslo"}), ("g.h-1", {}), ("f", {"city": "Rom", "days": 1})]
    between = {"llama": "; ", "gemma": ""}.get(family, "\n")
    answer, calls = read(reader_of(models[family]), [between.join(written(family, *call) for call in given)])
    assert answer == ""
    assert [(name, json.loads(arguments_text)) for name, arguments_text in calls] == given
    last = '<tool_call>{"arguments": {"city": "Oslo"}, "name": "f"}</tool_call>'  # the name may come last
    assert read(reader_of(models["hermes"]), list(last)) == ("", [("f", '{"city": "Oslo"}')])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call>\nnothing\n</tool_call>"),
        ("gemma", "<|tool_call>call:f{city:<tool_call|>"),
        ("harmony", "<|start|>assistant is a token"),
        ("llama", '{"name": "unknown", "parameters": {}}'),
        ("llama", 'Call {"name": "f", "parameters": {}}'),
    ],
)
def test_text_that_is_not_a_call_stays_in_the_answer(models: Mapping[str, Tokenizer], family: str, text: str) -> None:
    for pieces in ([text], list(text)):
        answer, calls = read(reader_of(models[family]), pieces)
        assert (answer, calls) == (text, []) or (family, calls) == ("gemma", [("f", '{"city": 1}')])


def test_a_tag_s_text_becomes_json_of_its_type(models: Mapping[str, Tokenizer]) -> None:
    cases: list[tuple[str, str, Any]] = [("string", "12", "12"), ("integer", "12", 12), ("integer", "many", "many")]
    for kind, text, value in cases:
        reader = call_reader(models["tags"], {"f": {"properties": {"a": {"type": kind}}}})
        tags = f"<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>"
        answer, calls = read(reader, [f"<tool_call>\n{tags}\n</tool_call>"])
        assert (answer, json.loads(calls[0][1])) == ("", {"a": value})


OPTIONAL: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
LOCAL = {"Name": {"enum": ["1", "x"]}, "Count": {"type": "integer"}, "Loop": {"oneOf": [{"$ref": "#/$defs/Loop"}]}}


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (OPTIONAL, '{"a": 1}', '{"a": 1}'),
        (OPTIONAL, "42", "42"),
        (OPTIONAL, "12e5678", "12e5678"),
        (OPTIONAL, "null", None),
        (OPTIONAL, "null\n", "null\n"),
        ({"type": "string"}, "null", "null"),
        ({"type": ["integer", "string"]}, "42", "42"),
        ({"type": ["integer", "null"]}, "42", 42),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["x", 1]}, "1", 1),
        ({"const": "1"}, "1", "1"),
        ({"allOf": [OPTIONAL, {"type": ["string", "integer"]}]}, "null", "null"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, "1", 1),
        ({"$ref": "#/$defs/Name"}, "1", "1"),
        ({"$ref": "#/$defs/Count"}, "1", 1),
        ({"$ref": "#/$defs/Loop"}, "1", "1"),
        ({"anyOf": [{"$ref": "#/$defs/Count"}, {"type": "null"}]}, "1", 1),
        ({"description": "anything"}, "1", "1"),
        ({"type": "number"}, "12e5678", "12e5678"),
        ({"type": "array"}, "[NaN]", "[NaN]"),
    ],
)
def test_a_tag_s_text_stays_a_string_if_the_schema_allows_one(
    models: Mapping[str, Tokenizer], schema: dict[str, Any], text: str, value: Any, is_split: bool
) -> None:
    reader = call_reader(models["tags"], {"f": {"properties": {"a": schema}, "$defs": LOCAL}})
    call = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    answer, calls = read(reader, list(call) if is_split else [call])
    assert (answer, json.loads(calls[0][1])) == ("", {"a": value})


values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(alphabet='aé {}[],:"\n', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab_1", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("ab_1", min_size=1), values, max_size=4))
def test_gemma_objects_are_parsed(value: dict[str, Any]) -> None:
    assert parse_gemma_object(gemma(value)) == value


@pytest.mark.parametrize(
    ("body", "is_open"),
    [
        ('{"name": "say", "arguments": {"text": "a', True),
        ('{"name": "say", "arguments": {"text": "a"', False),
        (r'{"name": "say", "arguments": {"text": "a\"', True),
        (r'{"name": "say", "arguments": {"text": "a\\"', False),
        (r'{"name": "say", "arguments": {"text": "a\\\"', True),
        ("<function=say>\n<parameter=text>\na", True),
        ("<function=say>\n<parameter=text>\na</parameter>", False),
        ("<function=say>\n<parameter=text>\na</parameter><parameter=more>", True),
        (' tag, 5" wide.', False),
        ('{"answer": "5', False),
    ],
)
def test_only_a_call_has_open_values(body: str, is_open: bool) -> None:
    assert is_value_open(body) is is_open


def test_the_end_of_a_long_value_is_found_quickly() -> None:
    body, began = '{"name": "say", "arguments": {"text": "' + r"say \"hello\" " * 4000, time.perf_counter()
    assert is_value_open(body)
    assert time.perf_counter() - began < 1  # 7 s if the text after each escaped quote is read again


def test_malformed_gemma_objects_are_refused() -> None:
    for text in ("", "{", "{a}", "{a:}", "{a:1", "{a:[1}", '{a:<|"|>x}', "{a:1}}", "{:1}", "{a:" * 99 + "1" + "}" * 99):
        assert parse_gemma_object(text) is None, text


USER, ANSWER = TemplateMessage("user", "Will it rain?"), TemplateMessage("assistant", "It will.")
CALL = CalledTool("1", "weather", {"city": "Łódź"})


def test_calls_and_results_become_text_of_the_messages() -> None:
    results = [TemplateMessage("tool", text, call_id=text, name="weather") for text in ("rain", "sun")]
    called = TemplateMessage("assistant", "I look.", (CALL, CALL))
    described = describe_in_words([USER, called, *results, ANSWER], ())
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
    assert described == [
        USER,
        TemplateMessage("assistant", f"I look.\n{call}\n{call}"),
        TemplateMessage("user", "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"),
        ANSWER,
    ]
