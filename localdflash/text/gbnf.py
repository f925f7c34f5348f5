"""Translation of llama.cpp's grammar language (GBNF) into Lark's, which llguidance reads.

A rule that is not recursive becomes a terminal, which is fast and greedy; `root` and recursive rules stay rules.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<blank>(?:\s|\#[^\n]*)+)
      | (?P<literal>"(?:\\.|[^"\\])*")
      | (?P<class>\[(?:\\.|[^\]\\])*\])
      | (?P<rule>[A-Za-z0-9_-]+)\s*::=
      | (?P<name>[A-Za-z0-9_-]+)
      | (?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
      | (?P<mark>[|()*+?.])""",
    re.DOTALL | re.VERBOSE,
)
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2}) | \\u([0-9A-Fa-f]{4}) | \\U([0-9A-Fa-f]{8}) | \\?.", re.DOTALL | re.VERBOSE
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_ANY_CHARACTER = "/[\\x00-\U0010ffff]/"

Token = tuple[str, str]  # group name in _TOKEN, text
Rules = dict[str, list[Token]]


def gbnf_to_lark(text: str) -> str:
    """Return the grammar in Lark's language; ValueError if it is invalid."""
    rules = _parse_rules(text)
    terminals = _find_terminals(rules)
    names = {"root": "start"}
    for number, name in enumerate(rules):
        lark_name = f"r{number}_{name.replace('-', '_')}"
        names.setdefault(name, lark_name.upper() if name in terminals else lark_name.lower())
    bodies = {name: " ".join(_translate(*token, names) for token in tokens) for name, tokens in rules.items()}
    return "".join(f"{names[name]}: {body}\n" for name, body in bodies.items())


def _parse_rules(text: str) -> Rules:
    rules: Rules = {}
    body: list[Token] | None = None
    for kind, part in _split_tokens(text):
        if kind == "rule":
            if part in rules:
                raise ValueError(f"rule {part!r} is defined twice")
            body = rules[part] = []
        elif body is None:
            raise ValueError(f"expected a rule, `name ::= ...`, found {part[:40]!r}")
        else:
            body.append((kind, part))
    if "root" not in rules:
        raise ValueError("no rule 'root'")
    for name, tokens in rules.items():
        for used in _used_rules(tokens):
            if used not in rules:
                raise ValueError(f"rule {name!r} uses {used!r}, which is not defined")
    return rules


def _split_tokens(text: str) -> Iterator[Token]:
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if not match or not match.lastgroup:
            line = text.count("\n", 0, offset) + 1
            raise ValueError(f"line {line}: cannot read {text[offset : offset + 40]!r}")
        if match.lastgroup != "blank":
            yield match.lastgroup, match[match.lastgroup]
        offset = match.end()


def _used_rules(tokens: list[Token]) -> set[str]:
    return {part for kind, part in tokens if kind == "name"}


def _find_terminals(rules: Rules) -> set[str]:
    """Return the names of the rules that neither are recursive nor use a recursive rule."""
    missing = {name: _used_rules(tokens) for name, tokens in rules.items()}
    users: dict[str, list[str]] = defaultdict(list)
    for name, used in missing.items():
        for dependency in used:
            users[dependency].append(name)
    ready = [name for name, used in missing.items() if not used]
    for name in ready:  # the loop appends to the list
        for user in users[name]:
            missing[user].discard(name)
            if not missing[user]:
                ready.append(user)
    return set(ready)


def _translate(kind: str, part: str, names: dict[str, str]) -> str:
    match kind:
        case "literal":
            return json.dumps("".join(map(_decode_character, _CHARACTER.finditer(part[1:-1]))), ensure_ascii=False)
        case "class":
            return _translate_class(list(_CHARACTER.finditer(part[1:-1])))
        case "name":
            return names[part]
        case "count":
            return "".join(part.split())
        case _:
            return _ANY_CHARACTER if part == "." else part


def _translate_class(characters: list[re.Match[str]]) -> str:
    """Return a GBNF character class as a regular expression in Lark's slashes."""
    negated = bool(characters) and characters[0][0] == "^"
    index = int(negated)
    translated = ""
    while index < len(characters):
        translated += _translate_character(characters[index])
        if len(characters) > index + 2 and characters[index + 1][0] == "-":
            translated += "-" + _translate_character(characters[index + 2])
            index += 2
        index += 1
    if not translated:
        raise ValueError(f"empty character class: [{'^' if negated else ''}]")
    return f"/[{'^' if negated else ''}{translated}]/"


def _translate_character(match: re.Match[str]) -> str:
    character = _decode_character(match)
    return character if character.isalnum() or not character.isascii() else f"\\x{ord(character):02x}"


def _decode_character(match: re.Match[str]) -> str:
    """Decode one GBNF character or escape sequence."""
    if digits := match[1] or match[2] or match[3]:
        character = chr(int(digits, 16))
        character.encode()  # raises ValueError for a lone surrogate
        return character
    if match[0][0] != "\\":
        return match[0]
    if match[0][1:] not in _ESCAPES:
        raise ValueError(f"unknown escape {match[0]}")
    return _ESCAPES[match[0][1:]]
