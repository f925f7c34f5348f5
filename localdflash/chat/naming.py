"""Find the file that a block of an answer names, in its fence or the line above.

A word counts as a file name only if it looks like a path with a known extension.
"""

import re
from pathlib import PurePosixPath

_MAX_LINE_CHARACTERS = 2_000  # characters of a line that may name a file
_NAMED_AS_EXTENSION = (
    "cmake css csv dart java less lua nix php proto r rst scala scss sql svelte svg swift toml vim vue zig"
)
_LANGUAGES = {  # names of a language in fences, the usual one first -> extensions of such files
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
    """Return the language of a fence's info string, in one spelling; "" if it names none."""
    first = re.split(r"[\s,{:=]", info.strip().lstrip("{."), maxsplit=1)[0].casefold()
    return _LANGUAGE_ALIASES.get(first, first)


def fits_language(info: str, path: str) -> bool:
    """Return whether a fence's language is that of a file."""
    name = PurePosixPath(path)
    return name.suffix[1:].lower() in _EXTENSIONS.get(language(info), ()) or language(info) == name.name.casefold()


def path_in_info(info: str) -> str:
    """The path in ```` ```python path=src/box.py ````, ```` ```src/box.py ```` or ```` ```python:src/box.py ````."""
    if len(info) > _MAX_LINE_CHARACTERS:
        return ""
    if found := _ATTRIBUTE.search(info):
        return str(next(group for group in found.groups() if group))
    words = info.split()
    for word in words:
        if _is_path(word):
            return word
        before, colon, after = word.partition(":")
        if colon and _is_path(after) and not before.isdecimal():  # 12:20:src/box.py cites lines that are there
            return after
    return ""


def path_in_comment(line: str) -> str:
    """Return the path in a first line such as `# src/box.py`."""
    found = _COMMENT.match(line) if len(line) <= _MAX_LINE_CHARACTERS else None
    path = str(found[1]) if found else ""
    return path if _is_path(path) else ""


def path_above(line: str, info: str) -> str:
    """Return the path in the line above a fence: alone on it, or the only quoted one before a final colon."""
    if len(line) > _MAX_LINE_CHARACTERS or not (is_diff(info) or language(info) in ("", "dockerfile", *_EXTENSIONS)):
        return ""  # what a fence of another kind shows, such as console, is no file
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
