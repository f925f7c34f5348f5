"""Gather the context of a completion: code from other files and from distant lines of the current file.

Pieces that change rarely come first, and new ones are added at the end of their kind, so that the KV cache of the
prompt stays valid while the user types.
"""

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import PurePath
from typing import TypeVar

from localdflash.code.context.context import ContextPiece, OpenFile
from localdflash.code.context.definitions import Definition, find_definitions
from localdflash.code.context.denied import is_secret
from localdflash.code.context.files import MAX_FILE_BYTES, clean_name, is_minified
from localdflash.code.context.imports import cut_head, import_statements, parse_imports
from localdflash.code.context.index import Workspace

T = TypeVar("T")
NEAR_LINES = 20  # lines above and below the cursor whose names are looked up
STEP_LINES = 5  # the range of near lines moves by this step
MAX_CANDIDATES = 3  # a name with more definitions in the workspace is ambiguous: none is used
MAX_CONTEXT_CHARS = 6_000  # all pieces together; `assemble` then truncates them to a token budget
MAX_PASSAGES = 4  # passages from other open files
MIN_SIMILARITY = 0.05  # Jaccard similarity of the identifiers of a passage and of the code at the cursor
OWN_SHARE, IMPORT_SHARE, DEFINITION_SHARE, PASSAGE_SHARE = 0.25, 0.45, 0.65, 0.85  # cumulative shares of the characters
_NAME = re.compile(r"[^\W\d]\w{2,}")
_FINISHED_NAME = re.compile(r"[^\W\d]\w{2,}(?=\W)")
_DEFINED_HERE = re.compile(
    r"\b(?:def|class|func|fn|function|type|struct|interface|enum|trait|const|let|var|local|static)\s+(\w+)"
)
_DISTINCTIVE_NAME = re.compile(r"^[^\W_].*(?:[a-z0-9][A-Z]|\w_\w)")  # a name of several words that is not private
WINDOW_LINES = 40  # length of a passage
WINDOW_STEP_LINES = 20  # distance between the starts of two passages of a file
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """and any are auto bool break case catch char class const continue def default delete double elif else end enum
        except export extends false finally float fn for from func function get goto have if impl implements import in
        int interface is it let lambda local long match mod mut namespace new nil none not null of or package pass print
        private protected pub public raise return self set short static str string struct super switch template that the
        then this throw true try type typedef typename undefined union unsigned use using var virtual void where while
        with yield None True False""",
    )
)
_WeightedDefinitions = Sequence[tuple[Definition, float]]


def gather(
    workspace: Workspace,
    current: OpenFile,
    line: int,
    others: Sequence[OpenFile],
    diffs: Sequence[ContextPiece],
    characters: int = MAX_CONTEXT_CHARS,
) -> list[ContextPiece]:
    """Return the pieces in prompt order, at most `characters` together; [] if the current file may not be used.

    `diffs`: of recent edits, newest last.
    """
    if not _is_allowed(workspace, current):
        return []
    names = _names_near(current.text.split("\n"), line)
    imported, used = _definitions(workspace, current, names)
    own = _own_code(current, line, names, int(characters * OWN_SHARE))
    pieces = _as_pieces("import", imported, int(characters * IMPORT_SHARE) - _length(own))
    pieces += _as_pieces("definition", used, int(characters * DEFINITION_SHARE) - _length(own + pieces))
    pieces += own
    pieces += _passages(workspace, current, line, others, diffs, int(characters * PASSAGE_SHARE) - _length(pieces))
    recent = [diff for diff in diffs if workspace.allowed_name(diff.name)]
    return pieces + _fitting(recent, [(len(one.text), one.weight) for one in recent], characters - _length(pieces))


def _is_allowed(workspace: Workspace, file: OpenFile) -> bool:
    if is_secret(PurePath(file.name)):
        return False
    return file.path is None or workspace.allowed(file.path)


def _length(pieces: Sequence[ContextPiece]) -> int:
    return sum(len(piece.text) for piece in pieces)


def _names_near(lines: Sequence[str], line: int) -> dict[str, None]:
    """Return each name near the cursor once: from lines below, from lines above, then finished ones of its line."""
    start = max(line - NEAR_LINES, 0) // STEP_LINES * STEP_LINES
    end = (line + NEAR_LINES) // STEP_LINES * STEP_LINES + STEP_LINES
    far = "\n".join((*lines[line + 1 : end], *lines[start:line]))
    own = "".join(lines[line : line + 1])
    return dict.fromkeys((*_NAME.findall(far), *_FINISHED_NAME.findall(own)))


def _own_code(current: OpenFile, line: int, names: dict[str, None], room: int) -> list[ContextPiece]:
    """Return distant imports and definitions of the current file that define names near the cursor, as one piece.

    Empty lines separate its paragraphs, because the prompt leaves out paragraphs that its prefix or suffix contains.
    """
    head = cut_head(current.text) if line > 2 * NEAR_LINES else ""
    imports = [text for text in import_statements(current.language, head) if {*_NAME.findall(text)} & {*names}]
    definitions = find_definitions(current.name, current.language, current.text)
    distant = [one for name in names for one in definitions if one.name == name and abs(one.line - line) > NEAR_LINES]
    paragraphs = ["\n".join(imports), *dict.fromkeys(definition.text for definition in distant)]
    fitting = _fitting(paragraphs, [(len(text) + 2, 1.0) for text in paragraphs], room)
    return [ContextPiece("definition", current.name, text)] if (text := "\n\n".join(filter(None, fitting))) else []


def _definitions(
    workspace: Workspace, current: OpenFile, names: dict[str, None]
) -> tuple[_WeightedDefinitions, _WeightedDefinitions]:
    """Return definitions of imported names, in import order, and of other names near the cursor, with weights."""
    path = os.path.realpath(current.path) if current.path else ""
    own = set(workspace.defined_in(path))
    imports: dict[Definition, float] = {}
    modules: dict[str, Definition] = {}  # definitions that imported modules contain, by name
    for statement in parse_imports(current.language, cut_head(current.text)) if path else ():
        files = next((paths for module in statement.paths if (paths := workspace.locate(path, module))), ())
        exported = [definition for file in files for definition in workspace.defined_in(file)]
        modules |= {definition.name: definition for definition in exported if definition.name in names}
        for name in statement.names if files else ():
            candidates = [each for each in exported if each.name == name and each.kind != "method"]
            for definition in candidates or _find_few(workspace, name, current.language):
                imports.setdefault(definition, 1.0 if name in names else 0.6)
    used: dict[Definition, float] = {}
    defined_here = set(_DEFINED_HERE.findall(current.text))
    for name in names:
        if name in modules:
            used.setdefault(modules[name], 0.9)
        elif name not in defined_here:
            likely = [each for each in _find_few(workspace, name, current.language) if _is_likely(each, current)]
            used |= {each: 0.7 / len(likely) for each in likely if each not in used}
    imported = [(each, weight) for each, weight in imports.items() if each not in own]
    return imported, [(each, weight) for each, weight in used.items() if each not in imports and each not in own]


def _find_few(workspace: Workspace, name: str, language: str) -> Sequence[Definition]:
    definitions = workspace.find(name, language)
    return definitions if len(definitions) <= MAX_CANDIDATES else ()


def _is_likely(definition: Definition, current: OpenFile) -> bool:
    """Return whether a name that is not imported may mean this definition: same folder, or a distinctive name."""
    here, there = PurePath(current.name), PurePath(definition.path)
    if "test" in definition.path.lower() and "test" not in current.name.lower():
        return False
    return here.parent == there.parent or bool(_DISTINCTIVE_NAME.search(definition.name))


def _as_pieces(kind: str, weighted: _WeightedDefinitions, room: int) -> list[ContextPiece]:
    """Return the definitions of highest weight that fit, in order; consecutive definitions of one file form a piece."""
    fitting = _fitting(weighted, [(len(definition.text) + 1, weight) for definition, weight in weighted], room)
    pieces = []
    for name, group in groupby(fitting, key=lambda pair: pair[0].path):
        definitions, weights = zip(*group, strict=True)
        pieces.append(ContextPiece(kind, name, "\n".join(one.text for one in definitions), max(weights)))
    return pieces


def _passages(
    workspace: Workspace,
    current: OpenFile,
    line: int,
    others: Sequence[OpenFile],
    diffs: Sequence[ContextPiece],
    room: int,
) -> list[ContextPiece]:
    near = _identifiers_around(current.text.split("\n"), line)
    edited = {diff.name for diff in diffs}
    pieces = []
    for other in others:
        # A document without a path may be an older version of the current file.
        is_current = other.path == current.path if other.path else other.name == current.name
        if is_current or not _is_allowed(workspace, other):
            continue
        text, similarity = _most_similar(near, other.text)
        if similarity >= MIN_SIMILARITY:
            name = clean_name(other.name)
            pieces.append(ContextPiece("recent" if name in edited else "open", name, text, round(similarity, 3)))
    best = sorted(pieces, key=lambda piece: (-piece.weight, piece.name))[:MAX_PASSAGES]
    fitting = _fitting(best, [(len(piece.text), piece.weight) for piece in best], room)
    return sorted(fitting, key=lambda piece: piece.name)


def _identifiers(text: str) -> frozenset[str]:
    """Return the names in a text of any language, without keywords."""
    return frozenset(_NAME.findall(text)) - _KEYWORDS


def _identifiers_around(lines: Sequence[str], line: int) -> frozenset[str]:
    """Return the identifiers of the lines around a line, without those of the line itself."""
    start = max(line - WINDOW_LINES // 2, 0) // 10 * 10
    return _identifiers("\n".join((*lines[start:line], *lines[line + 1 : start + WINDOW_LINES + 10])))


def _most_similar(near: frozenset[str], text: str) -> tuple[str, float]:
    """Return the passage of a text that is most similar to `near`, and its similarity from 0 to 1."""
    scores = [len(near & names) / (len(near | names) or 1) for names in _passage_names(text)]
    best = max(scores, default=0.0)
    start = scores.index(best) * WINDOW_STEP_LINES if best else 0
    return "\n".join(text.split("\n")[start : start + WINDOW_LINES]).strip("\n"), best


@lru_cache(64)
def _passage_names(text: str) -> tuple[frozenset[str], ...]:
    """Return the identifiers of each passage. Cached: other files rarely change while a user types."""
    if len(text) > MAX_FILE_BYTES or is_minified(text):
        return ()
    lines = text.split("\n")
    return tuple(
        _identifiers("\n".join(lines[start : start + WINDOW_LINES]))
        for start in range(0, max(len(lines) - WINDOW_STEP_LINES, 1), WINDOW_STEP_LINES)
    )


def _fitting(items: Sequence[T], sizes_and_weights: Sequence[tuple[int, float]], room: int) -> list[T]:
    """Return the items of highest weight that fit into `room` characters, in their original order."""
    chosen = set()
    for index, (size, _) in sorted(enumerate(sizes_and_weights), key=lambda pair: (-pair[1][1], pair[0])):
        if size <= room:
            room -= size
            chosen.add(index)
    return [item for index, item in enumerate(items) if index in chosen]
