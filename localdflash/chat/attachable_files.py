"""Find and read the files below a folder that may be attached to a message. Both block the calling thread."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from localdflash.base.errors import UsageError
from localdflash.chat.fuzzy import Haystack, match_positions
from localdflash.chat.messages import Attachment

if TYPE_CHECKING:
    from localdflash.code.context.index import Workspace

MAX_ATTACHED_BYTES = 256 * 1024  # size limit of one file
LISTING_SECONDS = 3.0  # an older list of files is refreshed
REFRESH_WAIT_SECONDS = 0.1  # how long `find` waits for a refresh
_MAX_RECENT = 20
_INDEX_POLL_SECONDS = 2.0  # interval of reads of an index that is being built


@dataclass(frozen=True, slots=True)
class FileMatch:
    """File, or with `symbol` a definition in it. `path`: relative to the folder. `marked`: matches in `name`."""

    path: str
    symbol: str = ""
    marked: tuple[int, ...] = ()  # indices of characters

    @property
    def name(self) -> str:
        """Return the name to mention in a message: `box.py` or `box.py:Box.add`."""
        return f"{self.path}:{self.symbol}" if self.symbol else self.path


class AttachableFiles:
    """Files below `root`. `say` receives lines for the user, from any thread."""

    def __init__(self, root: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.root = os.path.realpath(root)
        self._say, self._reported = say, set[str]()
        self._lock = threading.Lock()
        self._listed, self._is_listing, self._indexing = threading.Event(), False, threading.Lock()
        self._listed_at = 0.0  # time of the last list, from time.monotonic(); 0: none yet
        self._names = Haystack((), "/")
        self._defined: tuple[Haystack, Sequence[str]] = Haystack((), "."), ()  # names of definitions; the file of each
        self._recent: list[FileMatch] = []  # matches read last, newest first
        self._workspace: Workspace | None = None
        self._index_edition = -1  # edition of the workspace's index that `_defined` was copied from
        self._closed = False

    def close(self) -> None:
        """Stop the background threads."""
        self._closed = True
        if self._workspace is not None:
            self._workspace.close()

    @property
    def is_listed(self) -> bool:
        """Return whether the first list of files is complete; until then, `find` waits for it."""
        return self._listed_at > 0.0

    def find(self, query: str, limit: int = 30) -> list[FileMatch]:
        """Return the best matches; `box.py:ad` searches definitions in box.py, "" returns recent files, then all."""
        self._refresh()
        recent = [hit for hit in self._recent if not query or match_positions(query, hit.name)]
        hits = [FileMatch(hit.path, hit.symbol, match_positions(query, hit.name)) for hit in recent]
        if not query:
            hits += [FileMatch(name) for name in self._names.names[: limit + len(hits)]]
        elif ":" in query:
            path, _, symbol = query.rpartition(":")
            hits += self._members(path, symbol, limit)
        else:
            hits += self._matches(query, limit)
        return list({hit.name: hit for hit in reversed(hits)}.values())[::-1][:limit]

    def exists(self, path: str) -> bool:
        """Return whether `path` exists and is not a folder, even if the file may not be attached."""
        full = self._full(path)
        return os.path.lexists(full) and not os.path.isdir(full)

    def relative_path(self, path: str) -> str | None:
        """Return the path relative to the folder, or None if the file may not be attached."""
        try:
            return self._check_allowed(path)
        except UsageError:
            return None

    def read(self, path: str, part: str = "") -> Attachment:
        """Return a file or its `part`: lines (`12-40`) or a definition (`Box.add`). UsageError if that is refused."""
        relative_path = self._check_allowed(path)
        text = self._read_text(relative_path)
        name = f"{relative_path}:{part}" if part else relative_path
        is_symbol = bool(part) and not part[0].isdecimal()
        if is_symbol:
            text = _select_definition(relative_path, part, text)
        elif part:
            text = _select_lines(relative_path, part, text)
        hit = FileMatch(relative_path, part if is_symbol else "")
        self._recent = [hit, *(one for one in self._recent if one != hit)][:_MAX_RECENT]
        return Attachment("symbol" if is_symbol else "file", name, text)

    def _matches(self, query: str, limit: int) -> list[FileMatch]:
        names, (defined, paths) = self._names, self._defined
        matches: list[tuple[int, FileMatch]] = []
        for tier, index in names.find_best(query, limit):
            matches.append((tier, FileMatch(names.names[index], "", match_positions(query, names.names[index]))))
        for tier, index in defined.find_best(query, limit):
            path, symbol = paths[index], defined.names[index]
            marked = tuple(len(path) + 1 + at for at in match_positions(query, symbol))
            matches.append((tier, FileMatch(path, symbol, marked)))
        return [hit for _, hit in sorted(matches, key=lambda pair: pair[0])][:limit]

    def _members(self, path: str, symbol: str, limit: int) -> list[FileMatch]:
        """Return the definitions that match `symbol` ("": all) in the files whose path ends with `path`."""
        defined, paths = self._defined
        inside = [i for i, file in enumerate(paths) if f"/{file}".endswith(f"/{path}")]
        names = [defined.names[index] for index in inside]
        chosen = [at for _, at in Haystack(names, ".").find_best(symbol, limit)] if symbol else range(len(names))
        hits = [FileMatch(paths[inside[i]], names[i]) for i in chosen][:limit]
        return [FileMatch(hit.path, hit.symbol, match_positions(f":{symbol}", hit.name)[1:]) for hit in hits]

    def _refresh(self) -> None:
        """List the files again if the list is old. Wait for the first list, else at most `REFRESH_WAIT_SECONDS`."""
        is_first = not self.is_listed
        with self._lock:
            if not self._is_listing and (is_first or time.monotonic() - self._listed_at > LISTING_SECONDS):
                self._is_listing = True
                self._listed.clear()
                threading.Thread(target=self._list, name="files", daemon=True).start()
        self._listed.wait(None if is_first else REFRESH_WAIT_SECONDS)

    def _list(self) -> None:
        """List the files, then index their definitions; runs in its own thread."""
        from localdflash.code.context.ignore import IgnoreRules
        from localdflash.code.context.listing import list_files

        try:
            listing = list_files(self.root, IgnoreRules(Path(self.root)))
            if listing.names != self._names.names:
                self._names = Haystack(listing.names, "/")
            if listing.cut:
                self._report_once(f"only {len(listing.names):,} files are listed; type the path of any other")
        finally:
            self._listed_at, self._is_listing = time.monotonic(), False
            self._listed.set()
        if not self._closed and self._indexing.acquire(blocking=False):
            try:
                self._index()
            finally:
                self._indexing.release()

    def _index(self) -> None:
        """Copy definitions from the workspace's index until it is complete; the first call starts the indexing."""
        if self.root in (os.path.realpath(Path.home()), os.path.realpath("/")):
            return  # a home folder is not a project
        if self._workspace is None:
            from localdflash.code.context.index import Workspace

            self._workspace = Workspace([Path(self.root)], self._report_once)
            self._workspace.start()
        workspace, is_complete = self._workspace, False
        while not is_complete and not self._closed:
            is_complete = workspace.settled(_INDEX_POLL_SECONDS)
            if (edition := workspace.edition) != self._index_edition:
                defined = workspace.definitions()
                names, paths = [one.qualified for one in defined], [one.path for one in defined]
                self._defined, self._index_edition = (Haystack(names, "."), paths), edition

    def _full(self, path: str) -> str:
        return os.path.abspath(os.path.join(self.root, path))

    def _check_allowed(self, path: str) -> str:
        """Return the path relative to the folder, links resolved; UsageError with the reason if the file is refused."""
        from localdflash.code.context.denied import is_secret
        from localdflash.code.context.files import clean_name
        from localdflash.code.context.ignore import IgnoreRules
        from localdflash.code.context.listing import VERSION_CONTROL

        display_name = clean_name(path)
        try:
            lexical = self._full(path)
            real = os.path.realpath(lexical)
        except ValueError:  # a NUL in the path
            raise UsageError(f"{display_name}: no such file") from None
        if is_secret(PurePath(lexical)) or is_secret(PurePath(real)):
            raise UsageError(f"{display_name}: files of this name hold secrets and are never read")
        top = self.root.rstrip("/") + "/"
        if real == self.root:
            raise UsageError(f"{display_name}: is a folder; name a file in it")
        if not real.startswith(top):
            raise UsageError(f"{display_name}: is outside of this folder; only files in it are read")
        rules, relative_path = IgnoreRules(Path(self.root)), real.removeprefix(top)
        places = [name.removeprefix(top) for name in (lexical, real) if name.startswith(top)]
        if VERSION_CONTROL & {part for place in places for part in place.split("/")}:
            raise UsageError(f"{display_name}: belongs to version control, and is not read")
        if any(rules.ignored(place) for place in places):
            raise UsageError(f"{display_name}: is ignored by .gitignore or .localdflashignore, and is not read")
        if not os.path.isfile(real):
            problem = "is a folder; name a file in it" if os.path.isdir(real) else "no such file"
            raise UsageError(f"{display_name}: {problem}")
        return relative_path

    def _read_text(self, relative_path: str) -> str:
        from localdflash.code.context.files import clean_name, read_bytes, read_signature

        display_name, signature = clean_name(relative_path), read_signature(f"{self.root}/{relative_path}")
        if signature is not None and signature.size > MAX_ATTACHED_BYTES:
            size, limit = format_size(signature.size), format_size(MAX_ATTACHED_BYTES)
            raise UsageError(f"{display_name}: too large ({size}, at most {limit})")
        data = read_bytes(self.root, relative_path)
        if data is None:
            raise UsageError(f"{display_name}: cannot be read")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise UsageError(f"{display_name}: not UTF-8 text")
        return text

    def _report_once(self, line: str) -> None:
        if line not in self._reported:
            self._reported.add(line)
            self._say(line)


def find_code_file(files: AttachableFiles) -> str:
    """Return the name of the first code file in the folder itself that may be listed; "" if there is none."""
    from localdflash.code.context.files import clean_name
    from localdflash.text.syntax import language_of

    try:
        names = sorted(one.name for one in os.scandir(files.root) if not one.name.startswith(".") and one.is_file())
    except OSError:
        return ""
    listable = (name for name in names if clean_name(name) == name and language_of(name))
    return next((name for name in listable if files.relative_path(name)), "")


def format_size(count: int) -> str:
    """Return a number of bytes in a readable unit."""
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.0f} KB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"


def _select_lines(name: str, part: str, text: str) -> str:
    first, _, last = part.partition("-")
    lines = _split_lines(text)
    start, end = int(first), int(last or first)
    if not 1 <= start <= end:
        raise UsageError(f"{name}:{part}: expected lines as first-last, counted from 1")
    if end > len(lines):
        raise UsageError(f"{name}:{part}: the file has {len(lines)} lines")
    return "".join(lines[start - 1 : end])


def _select_definition(name: str, symbol: str, text: str) -> str:
    from localdflash.code.context.definitions import find_definitions
    from localdflash.text.syntax import language_of

    matches = [
        one for one in find_definitions(name, language_of(name, text=text), text) if symbol in (one.qualified, one.name)
    ]
    if not matches:
        raise UsageError(f"{name} defines no {symbol}")
    first, last = min(matches, key=lambda one: one.qualified != symbol).lines
    return "".join(_split_lines(text)[first : last + 1])


def _split_lines(text: str) -> list[str]:
    """Return the lines with their line ends."""
    return list(StringIO(text))  # like editors and tree-sitter; str.splitlines would also split at form feeds
