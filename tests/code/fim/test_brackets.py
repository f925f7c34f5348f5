"""Brackets in code, and not in strings, comments, regular expressions and characters."""

import pytest

from localdflash.code.fim.brackets import Brackets

OPEN = {  # language, code -> brackets left open, and the end of the text that the code stops in
    "a regular expression": ("javascript", "x = s.replace(/[(\"'/]+\\/(/g, ", "(", ""),
    "one that begins a line": ("typescript", "/^\\(/.test(", "(", ""),
    "in one": ("javascript", "if (/ab[", "(", "]"),
    "a division": ("javascript", "f(a / (b), (c) / '", "(", "'"),
    "a division of strings and calls": ("javascript", "x = f('a' / [b() / (", "([(", ""),
    "a comment after an operator": ("javascript", "x = // (\n  [", "[", ""),
    "the end of a tag": ("tsx", "return (<p>{a}</p>, [", "([", ""),
    "an apostrophe in a tag": ("tsx", "<p>Don't {say(", "{(", ""),
    "characters": ("rust", "f('(', '\\'', b'\"', 'a', [", "([", ""),
    "lifetimes": ("rust", "fn f<'a>(x: &'a str, y: &'_ [", "([", ""),
    "a label": ("rust", "'outer: loop {", "{", ""),
    "a color": ("", ".a {\n  color: #fff; x: (", "{(", ""),
    "an address": ("", "See [docs](http://x.org/a) and (", "(", ""),
    "a comment of an unknown language": ("", "# it's (\nf(  # a [\n\t// (b\n[", "([", ""),
    "a string after a string": ("python", "f('a' '('\"(\", [", "([", ""),
    "an empty string is no start of three quotes": ("python", "f('', ('", "((", "'"),
    "three quotes": ("python", "f('''it's (''', [", "([", ""),
}


@pytest.mark.parametrize(("language", "code", "brackets", "end"), OPEN.values(), ids=OPEN)
def test_what_is_open(language: str, code: str, brackets: str, end: str) -> None:
    found = Brackets(language)
    found.feed(code)
    assert ("".join(opener.bracket for opener in found.stack), found.terminator) == (brackets, end)
