"""Find the parts of an answer that may change files (fences, diffs, and search/replace blocks) and the files' names.

A Markdown parser cannot do this: a diff or search/replace block may contain a line that looks like the end of its
fence. A word counts as a file name only if it looks like a path with a known extension.
"""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from localdflash.chat import patches
from localdflash.chat.patches import FilePatch
from localdflash.text.thoughts import CLOSING, split_thoughts

_MAX_LINE_CHARACTERS = 2_000  # a longer line is not searched for a file name
_NAMED_AS_EXTENSION = (
    "cmake css csv dart java less lua nix php proto r rst scala scss sql svelte svg swift toml vim vue zig"
)
_LANGUAGES = {  # names of a language in info strings, canonical name first -> file extensions
    "asm": "s asm",
    "bash": "sh bash",
    "c": "c h",
    "cfg": "cfg ini",
    "clojure": "clj cljs",
    "cpp c++ cc": "cpp cc cxx hpp hh hxx h cu cuh",
    "csharp cs c#": "cs",
    "cuda": "cu cuh",
    "elixir": "ex exs",
    "erlang": "erl hrl",
    "go golang": "go mod",
    "graphql": "graphql gql",
    "haskell hs": "hs",
    "html": "html htm",
    "ini": "ini cfg conf",
    "javascript js mjs": "js mjs cjs jsx",
    "json jsonc": "json jsonc",
    "jsx": "jsx js",
    "julia": "jl",
    "kotlin kt": "kt kts",
    "make makefile": "mk",
    "markdown md": "md markdown",
    "ocaml": "ml mli",
    "perl": "pl pm",
    "python py python3 pyi": "py pyi",
    "ruby rb": "rb",
    "rust rs": "rs",
    "sh shell zsh": "sh bash zsh",
    "terraform tf hcl": "tf",
    "text txt": "txt",
    "tsx": "tsx ts",
    "typescript ts": "ts mts cts tsx",
    "xml": "xml svg",
    "yaml yml": "yaml yml",
    **{name: name for name in _NAMED_AS_EXTENSION.split()},
}
_EXTENSIONS = {names.split()[0]: extensions.split() for names, extensions in _LANGUAGES.items()}
_LANGUAGE_ALIASES = {name: names.split()[0] for names in _LANGUAGES for name in names.split()}
_KNOWN_SUFFIXES = {f".{ending}" for endings in _EXTENSIONS.values() for ending in endings}
_NAMES_WITHOUT_SUFFIX = {"Makefile", "Dockerfile", "Justfile", "LICENSE", "README", "CMakeLists.txt", ".gitignore"}
_PATH = re.compile(r"[\w@+.\-/()\[\]]+")
_ATTRIBUTE = re.compile(r"""\b(?:path|file|filename|title|name)\s*[=:]\s*(?:"([^"]+)"|'([^']+)'|([^\s,}"']+))""")
_COMMENT = re.compile(
    r"\s*(?:#|//|--|;+|%|/\*+|<!--)\s*(?:(?:file(?:name)?|path)\s*:\s*)?(\S+?)\s*(?:\*/|-->)?\s*$", re.I
)
_DECORATION = re.compile(r"^(?:[#>\s]+|\d+[.)]\s+|[-*+]\s+)*|[\s:*_]+$")
_LABEL = re.compile(r"^(?:(?:new |updated |modified )?(?:file(?:name)?|path)\s*:?\s*)", re.IGNORECASE)
_REMARK = re.compile(r"\s*\((?:new|new file|updated|modified|changed)\)$", re.IGNORECASE)
_QUOTED = re.compile(r"`([^`\s]+)`")


def language(info: str) -> str:
    """Return the canonical name of the language in a fence's info string, or ""."""
    first = re.split(r"[\s,{:=]", info.strip().lstrip("{."), maxsplit=1)[0].casefold()
    return _LANGUAGE_ALIASES.get(first, first)


def fits_language(info: str, path: str) -> bool:
    """Return whether a fence's info string names the language of the file at `path`."""
    name = PurePosixPath(path)
    return name.suffix[1:].lower() in _EXTENSIONS.get(language(info), ()) or language(info) == name.name.casefold()


def path_in_info(info: str) -> str:
    """Return the path in ```` ```py path=src/box.py ````, ```` ```src/box.py ```` or ```` ```py:src/box.py ````."""
    if len(info) > _MAX_LINE_CHARACTERS:
        return ""
    if match := _ATTRIBUTE.search(info):
        return str(next(group for group in match.groups() if group))
    words = info.split()
    for word in words:
        if _is_path(word):
            return word
        before, colon, after = word.partition(":")
        if colon and _is_path(after) and not before.isdecimal():  # 12:20:src/box.py cites existing lines
            return after
    return ""


def path_in_comment(line: str) -> str:
    """Return the path in a first line such as `# src/box.py`."""
    match = _COMMENT.match(line) if len(line) <= _MAX_LINE_CHARACTERS else None
    path = str(match[1]) if match else ""
    return path if _is_path(path) else ""


def path_above(line: str, info: str) -> str:
    """Return the path in the line above a fence: the whole line, or its only path in backticks before a final colon."""
    if len(line) > _MAX_LINE_CHARACTERS or not (is_diff(info) or language(info) in ("", "dockerfile", *_EXTENSIONS)):
        return ""  # other fences, such as console, show no file
    bare = _DECORATION.sub("", line).strip("*_ ")
    bare = _REMARK.sub("", _LABEL.sub("", bare)).strip("`*_: ")
    if _is_path(bare) and (language(info) in ("", "text") or is_diff(info) or fits_language(info, bare)):
        return bare
    quoted = [str(word) for word in _QUOTED.findall(line) if _is_path(word)]
    if (
        len(set(quoted)) == 1
        and line.rstrip().rstrip("*").endswith(":")
        and (fits_language(info, quoted[0]) or is_diff(info))
    ):
        return quoted[0]
    return ""


def is_diff(info: str) -> bool:
    """Return whether a fence's info string names a diff."""
    return language(info) in ("diff", "patch", "udiff")


def _is_path(word: str) -> bool:
    if not _PATH.fullmatch(word) or word.endswith("/"):
        return False
    name = PurePosixPath(word)
    return (
        name.suffix.lower() in _KNOWN_SUFFIXES
        or name.name in _NAMES_WITHOUT_SUFFIX
        or ("/" in word and 1 < len(name.suffix) < 8)
    )


_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^`]*)$")
_SEARCH = re.compile(r"<{5,9} ?SEARCH>?\s*$")
_MIDDLE = re.compile(r"={5,9}\s*$")
_REPLACE = re.compile(r">{5,9} ?REPLACE\s*$")
_BARE_REPLACE = re.compile(r">{5,9}\s*$")


@dataclass(frozen=True, slots=True)
class Fence:
    """Code block. `name`: path of its file or "". `labelled`: the first line is the path. `closed`: the fence ends."""

    info: str
    lines: tuple[str, ...]
    name: str
    labelled: bool
    closed: bool


@dataclass(frozen=True, slots=True)
class SearchReplace:
    """Search/replace block. `name`: path of its file, or "". `problem`: why the block cannot be applied, or ""."""

    name: str
    search: tuple[str, ...]
    replace: tuple[str, ...]
    problem: str = ""


AnswerBlock = Fence | SearchReplace | FilePatch


def find_blocks(answer: str) -> list[AnswerBlock]:
    """Return the blocks of an answer; blocks in the model's thoughts are left out."""
    return _BlockReader(split_thoughts(answer)[1]).read()


class _BlockReader:
    """Single pass over the lines of an answer."""

    def __init__(self, text: str) -> None:
        self._lines = [line.removesuffix("\r") for line in text.split("\n")]
        self._at = 0  # index of the next line
        self._blocks: list[AnswerBlock] = []

    def read(self) -> list[AnswerBlock]:
        while self._at < len(self._lines):
            if fence := _FENCE.match(self._lines[self._at]):
                self._read_fence(fence)
            elif not self._read_diff_or_search_replace(len(self._lines)):
                if self._lines[self._at].rstrip().endswith(CLOSING):  # the thoughts began in the prompt
                    self._blocks.clear()
                self._at += 1
        return self._blocks

    def _read_diff_or_search_replace(self, end: int) -> bool:
        """Read the diff or search/replace block that begins at this line; return False if none does."""
        if _SEARCH.match(self._lines[self._at]):
            self._blocks.append(self._read_search_replace(end))
        elif patches.is_diff_start(self._lines, self._at):
            patch, self._at = patches.read_file_patch(self._lines, self._at, end)
            self._blocks.append(patch)
        else:
            return False
        return True

    def _read_fence(self, opening: re.Match[str]) -> None:
        indent, ticks, info = opening.groups()
        first = self._at + 1
        closing = re.compile(rf"[ \t]{{0,{len(indent) + 3}}}{re.escape(ticks[0])}{{{len(ticks)},}}[ \t]*$")
        end = next((at for at in range(first, len(self._lines)) if closing.match(self._lines[at])), len(self._lines))
        if (thoughts_end := self._thoughts_end(first, end)) is not None:
            self._at = thoughts_end
            return
        inside = [line[len(indent) :] if not line[: len(indent)].strip() else line for line in self._lines[first:end]]
        self._lines[first:end] = inside
        name = path_in_info(info) or path_above(self._line_above(), info)
        before = len(self._blocks)
        self._at = first
        filled = [at for at, line in enumerate(inside) if line.strip()]
        holds_edits = is_diff(info) or any(_SEARCH.match(inside[at]) for at in filled[:2])
        holds_edits = holds_edits or (bool(filled) and patches.is_diff_start(inside, filled[0]))
        while self._at < end and holds_edits:
            if not self._read_diff_or_search_replace(end):
                self._at += 1
        if len(self._blocks) > before:  # the last block may end below `end`: a line in it looked like the fence's end
            after = next((at for at in range(self._at, len(self._lines)) if self._lines[at].strip()), self._at)
            is_closed = after < len(self._lines) and closing.match(self._lines[after]) and after >= end
            self._at = after + 1 if is_closed else self._at
            return
        self._at = end + 1
        self._blocks.append(self._make_fence(info, inside, name, end))

    def _thoughts_end(self, first: int, end: int) -> int | None:
        """Return the line with the end of thoughts in which this fence stays open; None if it is an ordinary fence."""
        at = next((at for at in range(first, end) if self._lines[at].rstrip().endswith(CLOSING)), end)
        opens_again = any((fence := _FENCE.match(line)) and fence[3] for line in self._lines[at:end])
        return at if at < end and (opens_again or end == len(self._lines)) else None

    def _make_fence(self, info: str, inside: list[str], name: str, end: int) -> AnswerBlock:
        closed = end < len(self._lines)
        if is_diff(info):  # a diff without file names
            hunks, _, problem = patches.read_hunks([*inside, "```"], 0, len(inside))
            return FilePatch(name, name, hunks, problem)
        in_comment = path_in_comment(inside[0]) if inside else ""
        labelled = bool(in_comment) and name in ("", in_comment)
        return Fence(info, tuple(inside), name or in_comment, labelled, closed)

    def _line_above(self) -> str:
        """Return the line above a fence, or the line before that if it is empty."""
        above = [line for line in self._lines[max(self._at - 2, 0) : self._at] if line.strip()]
        return above[-1] if above else ""

    def _read_search_replace(self, fence_end: int) -> SearchReplace:
        """Read the block that begins at this line. It ends before the next block, even if its end mark is missing."""
        name, start = self._search_replace_name(), self._at
        following = self._find_line(_SEARCH, start + 1, len(self._lines))
        end = self._find_line(_REPLACE, start, following)
        if end == following:  # otherwise, a line of > is part of the block's text
            end = self._find_line(_BARE_REPLACE, start, following)
        if end == following:
            is_last = following == len(self._lines)  # the fence may end in the block's text, so the rest is not read
            self._at = following if is_last else min(following, fence_end)
            return SearchReplace(name, (), (), "is cut short: it has no line >>>>>>> REPLACE")
        self._at = end + 1
        separators = self._find_separators(start, end)
        if len(separators) != 1:
            return SearchReplace(name, (), (), f"has {len(separators)} separators (lines of =, expected 1)")
        search, replace = self._lines[start + 1 : separators[0]], self._lines[separators[0] + 1 : end]
        return SearchReplace(name, tuple(search), tuple(replace))

    def _find_separators(self, start: int, end: int) -> list[int]:
        """Return the lines with as many `=` as line `start` has `<`; if there are none, the lines with 5 to 9."""
        separators = [at for at in range(start, end) if _MIDDLE.match(self._lines[at])]
        size = self._lines[start].count("<")
        return [at for at in separators if self._lines[at].count("=") == size] or separators

    def _find_line(self, mark: re.Pattern[str], start: int, end: int) -> int:
        """Return the first line from `start` to `end` that matches, or `end` if none does."""
        return next((at for at in range(start, end) if mark.match(self._lines[at])), end)

    def _search_replace_name(self) -> str:
        """Return the path in the lines above or in the fence's info string, else the previous block's path, or ""."""
        for line in reversed(self._lines[max(self._at - 4, 0) : self._at]):
            fence = _FENCE.match(line)
            path = path_in_info(fence[3]) if fence else path_above(line, "") or path_in_comment(line)
            if path:
                return path
            if line.strip() and not fence:
                break
        last = self._blocks[-1] if self._blocks else None
        return last.name if isinstance(last, SearchReplace) else ""
