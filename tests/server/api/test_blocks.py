"""Blocks of an answer: one is open at a time, and chunk boundaries do not change them."""

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.server.api.content_blocks import AnswerBlock, AnswerBlocks, AnswerParts, BlockEvent
from localdflash.text.thoughts import ThoughtSplit
from localdflash.text.tool_calls import MarkedCalls, is_value_open, parse_json

ARGUMENTS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3)
CALL = st.builds(
    lambda name, arguments: f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>",
    st.sampled_from(["f", "weather"]),
    ARGUMENTS,
)
PART = CALL | st.sampled_from(["words", " ", "\n", "<tool_call>", "no call</tool_call>", "<think>", '{"a": 1}'])
TEXT = st.builds(
    lambda thoughts, parts: (f"<think>\n{thoughts}\n</think>\n\n" if thoughts else "") + "".join(parts),
    st.sampled_from(["", "hm", "<tool_call> I think"]),
    st.lists(PART, max_size=6),
)


def written(text: str, cuts: list[int]) -> list[AnswerBlock]:
    """Return the blocks of a text that arrives in pieces; check their events."""
    parts = AnswerParts(ThoughtSplit(), MarkedCalls("<tool_call>", "</tool_call>", parse_json, is_value_open))
    writer = AnswerBlocks(parts)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    events = list[BlockEvent]()
    for start, end in itertools.pairwise(edges):
        events += writer.push(parts.push(text[start:end]))
    events += [*writer.push(parts.finish()), *writer.finish()]
    grown, open_block = dict[int, str](), None
    for event in events:
        number = event.block.number
        match event.action:
            case "begin":
                assert (open_block, number) == (None, len(grown))
                open_block, grown[number] = number, ""
            case "more":
                assert event.text
                assert open_block == number
                grown[number] += event.text
            case "end":
                assert open_block == number
                open_block = None
    assert open_block is None
    assert [block.text for block in writer.blocks] == [*grown.values()]
    assert len({block.id for block in writer.blocks}) == len(writer.blocks)
    return writer.blocks


def told(blocks: list[AnswerBlock]) -> tuple[str, str, list[tuple[str, str]]]:
    """Return thoughts, text and calls; the position of text among calls depends on the cuts."""
    return (
        "".join(block.text for block in blocks if block.kind == "thoughts"),
        "".join(block.text for block in blocks if block.kind == "text"),
        [(block.name, block.text) for block in blocks if block.kind == "call"],
    )


@settings(max_examples=25)
@given(text=TEXT, cuts=st.lists(st.integers(0, 300), max_size=12))
def test_the_cut_does_not_matter(text: str, cuts: list[int]) -> None:
    assert told(written(text, cuts)) == told(written(text, [])) == told(written(text, [*range(len(text))]))
