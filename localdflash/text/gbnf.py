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
_ANY = "/[\\x00-\U0010ffff]/"

Token = tuple[str, str]  # the name of the group in _TOKEN, the text
Rules = dict[str, list[Token]]


def gbnf_to_lark(text: str) -> str:
    """Return the grammar in Lark's language; ValueError if it is invalid."""
    rules = _rules(text)
    terminals = _terminals(rules)
    names = {"root": "start"}
    for number, name in enumerate(rules):
        plain = f"r{number}_{name.replace('-', '_')}"
        names.setdefault(name, plain.upper() if name in terminals else plain.lower())
    bodies = {name: " ".join(_part(*token, names) for token in tokens) for name, tokens in rules.items()}
    return "".join(f"{names[name]}: {body}\n" for name, body in bodies.items())


def _rules(text: str) -> Rules:
    rules: Rules = {}
    body: list[Token] | None = None
    for kind, part in _tokens(text):
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
        for used in _uses(tokens):
            if used not in rules:
                raise ValueError(f"rule {name!r} uses {used!r}, which is not defined")
    return rules


def _tokens(text: str) -> Iterator[Token]:
    offset = 0
    while offset < len(text):
        match = _TOKEN.match(text, offset)
        if not match or not match.lastgroup:
            line = text.count("\n", 0, offset) + 1
            raise ValueError(f"line {line}: cannot read {text[offset : offset + 40]!r}")
        if match.lastgroup != "blank":
            yield match.lastgroup, match[match.lastgroup]
        offset = match.end()


def _uses(tokens: list[Token]) -> set[str]:
    return {part for kind, part in tokens if kind == "name"}


def _terminals(rules: Rules) -> set[str]:
    """Return the names of the rules that are not recursive."""
    missing = {name: _uses(tokens) for name, tokens in rules.items()}
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


def _part(kind: str, part: str, names: dict[str, str]) -> str:
    match kind:
        case "literal":
            return json.dumps("".join(map(_character, _CHARACTER.finditer(part[1:-1]))), ensure_ascii=False)
        case "class":
            return _character_class(list(_CHARACTER.finditer(part[1:-1])))
        case "name":
            return names[part]
        case "count":
            return "".join(part.split())
        case _:
            return _ANY if part == "." else part


def _character_class(characters: list[re.Match[str]]) -> str:
    """Return a character class; ASCII characters but letters and digits are escaped, for Lark's regular expressions."""
    negated = bool(characters) and characters[0][0] == "^"
    index = int(negated)
    plain = ""
    while index < len(characters):
        plain += _escaped(characters[index])
        if len(characters) > index + 2 and characters[index + 1][0] == "-":
            plain += "-" + _escaped(characters[index + 2])
            index += 2
        index += 1
    if not plain:
        raise ValueError(f"empty character class: [{'^' if negated else ''}]")
    return f"/[{'^' if negated else ''}{plain}]/"


def _escaped(match: re.Match[str]) -> str:
    character = _character(match)
    return character if character.isalnum() or not character.isascii() else f"\\x{ord(character):02x}"


def _character(match: re.Match[str]) -> str:
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
