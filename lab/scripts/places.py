"""Score completions at random positions in code that none of our models was trained on.

`PYTHONPATH=. python -P lab/scripts/places.py FOLDER --name NAME [--pair PAIR] [--seed N] [--enter] [--manual]
[--context SOURCES] [--from-line N] [--json FILE]`

FOLDER is the folder given to `train adapter`; its held-out packages are used. What is missing is the rest of a line
(60 %), a whole line (20 %) or a part of a line (20 %). `--manual` requests a suggestion as a user's key does, without
confidence limits. `--enter`: whole lines of code are missing, and the line above was just typed, up to Enter and the
indentation that an editor adds. `--context own,other`: the prompt has distant code of the file itself, or code of
other files of its package; `--from-line`: positions are this far down. The suggestion is

* whole: all that was missing, or more; part: it begins with the right word;
* wrong: anything else; silent: nothing, or too unsure to be shown automatically;
* misindented: it begins with blanks; counted in addition to the verdict, as are the next two;
* open: the file no longer parses because the suggestion leaves a bracket or quote open; broken: for another reason.
"""

import argparse
import ast
import json
import random
import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localdflash.cli.output import say
from localdflash.code.context.context import ContextPiece, OpenFile
from localdflash.code.context.gather import gather
from localdflash.code.context.index import Workspace
from localdflash.lab import result_file
from localdflash.lab.bench.spread import spread
from localdflash.lab.train.adapter_corpus import fetch_archives, read_sources
from localdflash.lsp.session import MAX_ANSWER_TOKENS, MAX_PREFIX_CHARS, MAX_SUFFIX_CHARS, MIN_TOKEN_PROBABILITY
from localdflash.lsp.typing_pace import START_CONFIDENCE
from localdflash.server.client import Client
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.spawn import ensure_daemon
from localdflash.text import syntax

SHARES = {"python": 0.5, "javascript": 0.25, "typescript": 0.25}
KINDS = {"rest": 3, "line": 1, "inside": 1}
_CODE = re.compile(r"\s*(?!#|//|\*|/\*|import\b|from\b)\S")
_OPENER = re.compile(r"[:({\[]\s*$")
_WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)")


@dataclass(frozen=True)
class CursorPosition:
    """Cursor position, and the text removed after it."""

    name: str
    language: str
    kind: str
    before: str
    missing: str
    after: str
    typed: int = 0  # characters at the end of `before` that were typed since the anchor


@dataclass(frozen=True)
class ShownText:
    """Text shown at a position, and the milliseconds until the first of it arrived."""

    text: str
    ms: float


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--enter", action="store_true")
    parser.add_argument("--manual", action="store_true")
    parser.add_argument("--context", default="", type=lambda names: frozenset(filter(None, names.split(","))))
    parser.add_argument("--from-line", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    positions = choose_positions(given.folder, given.count, given.seed, given.from_line, after_enter=given.enter)
    client = ensure_daemon(EngineSpec({"pair": given.pair}, ["pair"]), say)
    with tempfile.TemporaryDirectory() as folder:
        context = PackageContext(given.folder, Path(folder), given.context)
        texts = [ask(client, position, context.of(position), manual=given.manual) for position in positions]
    result = tally(positions, texts)
    print(json.dumps({name: value for name, value in result.items() if name != "places"}, indent=1))
    result_file.write(given.json, result, given.name)


class PackageContext:
    """Context of positions from these `sources`, `own` and `other`; packages are unpacked into `into` once."""

    def __init__(self, folder: Path, into: Path, sources: frozenset[str]) -> None:
        self._archives = {archive.path.name: archive for archive in fetch_archives(folder) if archive.held_out}
        self._into, self._sources = into, sources
        self._workspaces: dict[str, Workspace] = {}

    def of(self, position: CursorPosition) -> list[ContextPiece]:
        """Return the context that an editor would send."""
        package, _, name = position.name.partition("/")
        if not self._sources:
            return []
        if package not in self._workspaces:
            for file, text in read_sources(self._archives[package]).items():
                path = self._into / package / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            workspace = self._workspaces[package] = Workspace([self._into / package], say)
            workspace.start()
            workspace.settled(60.0)
        current = OpenFile(self._into / package / name, name, position.language, position.before + position.after)
        pieces = gather(self._workspaces[package], current, position.before.count("\n"), [], [])
        return [one for one in pieces if ("own" if one.name == name else "other") in self._sources]


def choose_positions(
    folder: Path, count: int, seed: int, from_line: int = 0, *, after_enter: bool = False
) -> list[CursorPosition]:
    """Choose `count` positions; all runs with the same seed choose the same positions."""
    rng, texts = random.Random(seed), dict[str, list[tuple[str, str]]]()
    for archive in fetch_archives(folder):
        if not archive.held_out:
            continue
        for name, text in read_sources(archive).items():
            language = syntax.language_of(name)
            if language in SHARES and text.count("\n") >= from_line + 20 and parses(language, text):
                texts.setdefault(language, []).append((f"{archive.path.name}/{name}", text))
    return [
        (choose_after_enter if after_enter else choose_position)(
            *rng.choices(files, [len(text) for _, text in files])[0], language, rng, from_line
        )
        for language, share in SHARES.items()
        for files in [sorted(texts[language])]
        for _ in range(round(share * count))
    ]


def choose_position(name: str, text: str, language: str, rng: random.Random, from_line: int) -> CursorPosition:
    """Choose a position in a file."""
    lines = text.split("\n")
    number = rng.choice(
        [at for at, line in enumerate(lines) if at >= from_line and _CODE.match(line) and len(line.strip()) >= 8]
    )
    line, kind = lines[number], rng.choices(list(KINDS), list(KINDS.values()))[0]
    indent = len(line) - len(line.lstrip())
    start, end = rng.randrange(indent + 1, len(line)), len(line)
    if kind == "line":
        start = indent
    elif kind == "inside":
        end = min(rng.randint(start + 1, start + 24), len(line) - 1)
    at = len("\n".join(lines[:number])) + (number > 0)
    return CursorPosition(name, language, kind, text[: at + start], line[start:end], text[at + max(start, end) :])


def choose_after_enter(name: str, text: str, language: str, rng: random.Random, from_line: int) -> CursorPosition:
    """Choose a line of code whose indentation an editor would add after the line above."""
    lines, tree = text.split("\n"), syntax.parse(language, text)
    assert tree
    indents = [len(line) - len(line.lstrip()) for line in lines]

    def fits(at: int) -> bool:
        above, line, deeper = lines[at - 1], lines[at], indents[at] - indents[at - 1]
        if not (_CODE.match(line) and _CODE.match(above)) or len(line.strip()) < 8:
            return False
        node = tree.root_node.descendant_for_point_range((at, indents[at]), (at, indents[at]))
        is_code = node is not None and not re.search("string|comment", node.type)
        return is_code and (deeper == 0 or (deeper > 0 and bool(_OPENER.search(above))))

    number = rng.choice([at for at in range(max(from_line, 1), len(lines)) if fits(at)])
    typed = f"{lines[number - 1]}\n{lines[number][: indents[number]]}"
    before = "".join(f"{line}\n" for line in lines[: number - 1]) + typed
    after = "".join(f"\n{line}" for line in lines[number + 1 :])
    return CursorPosition(name, language, "enter", before, lines[number].lstrip(), after, len(typed))


def ask(client: Client, position: CursorPosition, context: list[ContextPiece], *, manual: bool) -> ShownText:
    """Return the text that an editor would show."""
    anchor = len(position.before) - position.typed
    before = position.before[:anchor][-MAX_PREFIX_CHARS:]
    body = {
        "path": position.name.partition("/")[2],
        "context": [{"kind": one.kind, "name": one.name, "text": one.text, "weight": one.weight} for one in context],
        "prefix": before.partition("\n")[2] if len(before) < anchor else before,
        "middle": position.before[anchor:],
        "suffix": position.after[:MAX_SUFFIX_CHARS],
        "first_line": position.before[: max(anchor - MAX_PREFIX_CHARS, 0)].count("\n"),
        "max_tokens": MAX_ANSWER_TOKENS,
        "least_sure": 0.0 if manual else MIN_TOKEN_PROBABILITY,
    }
    began, text, confidence, first = time.perf_counter(), "", None, 0.0
    for event in client.stream("/complete", body):
        if event["text"] and not text:
            confidence, first = event["confidence"], time.perf_counter() - began
        text += event["text"]
    is_confident = manual or confidence is None or confidence >= START_CONFIDENCE
    return ShownText(text.rstrip() if is_confident else "", first * 1e3)


def tally(positions: list[CursorPosition], texts: list[ShownText]) -> dict[str, Any]:
    """Return the counts, and each position with its verdict."""
    pairs = list(zip(positions, texts, strict=True))
    verdicts = [verdict_of(position, shown.text) for position, shown in pairs]
    faults = [fault_of(position, shown.text) for position, shown in pairs]
    counts, fault_counts = Counter(verdicts), Counter(faults)
    return {
        "places_asked": len(positions),
        **{name: counts[name] for name in ("whole", "part", "wrong", "silent")},
        "misindented": sum(shown.text[:1] in (" ", "\t") and position.kind == "enter" for position, shown in pairs),
        **{name: fault_counts[name] for name in ("open", "broken")},
        "first_text_ms": spread([shown.ms for shown in texts if shown.text]),
        "places": [  # without the source text, for copyright
            {"name": position.name, "kind": position.kind, "verdict": verdict, "fault": fault}
            for position, verdict, fault in zip(positions, verdicts, faults, strict=True)
        ],
    }


def verdict_of(position: CursorPosition, shown: str) -> str:
    """Return "whole", "part", "wrong" or "silent", as the module's docstring defines them."""
    if not shown.strip():
        return "silent"
    right = position.missing + position.after
    if right.startswith(shown) and len(shown) >= len(position.missing.rstrip()):
        return "whole"
    return "part" if _first(right) == _first(shown) else "wrong"


def _first(text: str) -> str:
    found = _WORD.match(text)
    return found[0] if found else ""


def fault_of(position: CursorPosition, shown: str) -> str:
    """Return "open" or "broken" for a file that no longer parses with this text in it; "" for none."""
    if not shown.strip() or parses(position.language, position.before + shown + position.after):
        return ""
    uneven = any(shown.count(a) != shown.count(b) for a, b in ("()", "[]", "{}")) or any(
        shown.count(quote) % 2 for quote in "\"'`"
    )
    return "open" if uneven else "broken"


def parses(language: str, text: str) -> bool:
    """Return whether a file has no errors of syntax."""
    if language != "python":
        tree = syntax.parse(language, text)
        return tree is not None and not tree.root_node.has_error
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    main()
