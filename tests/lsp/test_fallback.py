"""The item that editors without inline completions get in their completion list, over the wire."""

from typing import Any

import pytest
from lsprotocol import types

from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

ADD = '''def add(first, second):
    """Return the sum."""
    total = first + second
    return total


print(add(1, 2))
'''
BODY = '    """Return the sum."""\n    total = first + second\n    return total'


async def ask(e: Any, before: str, after: str, *, language: str = "python") -> Any:
    uri = "file:///project/fallback"
    e.client.text_document_did_open(
        types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, language, 0, before + after))
    )
    line = before.count("\n")
    place = types.Position(line, len(before.rpartition("\n")[2].encode("utf-16-le")) // 2)
    answer = await e.client.text_document_completion_async(
        types.CompletionParams(types.TextDocumentIdentifier(uri), place)
    )
    assert answer.is_incomplete
    (item,) = answer.items
    assert item.text_edit.range.end == place
    return item


def halves(text: str, at: str) -> tuple[str, str]:
    """Split a text behind `at`, without the rest of that line."""
    before, _, rest = text.partition(at)
    return before + at, rest[rest.index("\n") :]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_several_lines_are_inserted_as_they_are(editor: Any, end: str) -> None:
    async with editor(oracle=ADD, inline=False) as e:
        before, after = ADD.split(BODY)
        item = await ask(e, before.replace("\n", end) + "    ", after.replace("\n", end))
        assert item.text_edit.new_text == BODY[4:].replace("\n", end)
        assert item.text_edit.range.start == types.Position(1, 4)
        assert (item.label, item.filter_text) == ('"""Return the sum.""" …', '"""Return the sum."""')
        assert item.insert_text_mode == types.InsertTextMode.AsIs


@pytest.mark.parametrize(
    ("language", "text", "typed", "word"),
    [
        ("javascript", "const $first = 1;\nconsole.log($first);\n\n", "log($fi", "$fi"),
        ("python", "smile = '😋'; größe = smile\nprint(1)\n\n", "'😋'; grö", "grö"),
    ],
)
async def test_it_replaces_what_is_a_word_to_the_editor(
    editor: Any, language: str, text: str, typed: str, word: str
) -> None:
    async with editor(oracle=text, inline=False) as e:
        before, after = halves(text, typed)
        item = await ask(e, before, after, language=language)
        start = before.rpartition("\n")[2].removesuffix(word)
        assert item.text_edit.range.start.character == len(start.encode("utf-16-le")) // 2
        assert item.text_edit.new_text == word + text[len(before) : len(text) - len(after)]
        assert item.filter_text == item.text_edit.new_text


@pytest.mark.parametrize(("ticks", "fence"), [("`", "```"), ("```", "````")])
async def test_what_is_shown_beside_the_list_is_code(editor: Any, ticks: str, fence: str) -> None:
    text = f'note = "{ticks}__init__{ticks} *args*"\nprint(note)\n\n'
    async with editor(oracle=text, inline=False) as e:
        item = await ask(e, *halves(text, "note = "))
        assert item.documentation.kind == types.MarkupKind.Markdown
        assert item.documentation.value == f"{fence}python\n{item.text_edit.new_text}\n{fence}"
