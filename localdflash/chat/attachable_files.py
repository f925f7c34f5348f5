"""Files of one folder that may be attached to a message: fuzzy search and reading, which block."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from localdflash.base.errors import UsageError
from localdflash.chat.fuzzy import Haystack, match_positions
from localdflash.chat.messages import Attachment

if TYPE_CHECKING:
    from localdflash.code.context.index import Workspace

MAX_ATTACHED_BYTES = 256 * 1024  # bytes of one file
LISTING_SECONDS = 3.0  # seconds that a listing is good for
REFRESH_WAIT_SECONDS = 0.1  # seconds that a lookup waits for a newer listing where there is an older one
_MAX_RECENT = 20
_INDEX_POLL_SECONDS = 2.0  # between two reads of an index that is being built


@dataclass(frozen=True, slots=True)
class FileMatch:
    """File by its path below the folder, or a definition in it; `marked`: indices of `name` that match the query."""

    path: str
    symbol: str = ""
    marked: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the name that a message mentions: box.py, box.py:Box.add."""
        return f"{self.path}:{self.symbol}" if self.symbol else self.path


class AttachableFiles:
    """Files below `root`. `say` receives lines for the user, from any thread."""

    def __init__(self, root: Path, say: Callable[[str], None] = lambda line: None) -> None:
        self.root = os.path.realpath(root)
        self._say, self._said = say, set[str]()
        self._lock = threading.Lock()
        self._listed, self._walking, self._indexing = threading.Event(), False, threading.Lock()
        self._walked = 0.0  # time.monotonic()
        self._names = Haystack((), "/")
        self._defined: tuple[Haystack, Sequence[str]] = Haystack((), "."), ()  # definitions, and the file of each
        self._recent: list[FileMatch] = []
        self._workspace: Workspace | None = None
        self._edition = -1
        self._closed = False

    def close(self) -> None:
        """Stop the background threads."""
        self._closed = True
        if self._workspace is not None:
            self._workspace.close()

    @property
    def listed(self) -> bool:
        """Return whether a lookup can be answered without waiting."""
        return self._walked > 0.0

    def find(self, query: str, limit: int = 30) -> list[FileMatch]:
        """Return the best files and indexed definitions (`box.py:ad`: those in box.py); for "" the latest mentions."""
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
        """Return whether something other than a folder has this name, allowed or not."""
        full = self._full(path)
        return os.path.lexists(full) and not os.path.isdir(full)

    def relative(self, path: str) -> str | None:
        """Return the path below the folder of a file that may be used; None for any other."""
        try:
            return self._allowed(path)
        except UsageError:
            return None

    def read(self, path: str, part: str = "") -> Attachment:
        """Return a file, lines of it (`12-40`) or a definition (`Box.add`); UsageError if it is refused or missing."""
        below = self._allowed(path)
        text = self._text(below)
        name = f"{below}:{part}" if part else below
        symbol = bool(part) and not part[0].isdigit()
        if symbol:
            text = _select_definition(below, part, text)
        elif part:
            text = _select_lines(below, part, text)
        hit = FileMatch(below, part if symbol else "")
        self._recent = [hit, *(one for one in self._recent if one != hit)][:_MAX_RECENT]
        return Attachment("symbol" if symbol else "file", name, text)

    def _matches(self, query: str, limit: int) -> list[FileMatch]:
        names, (defined, paths) = self._names, self._defined
        found: list[tuple[int, FileMatch]] = []
        for tier, at in names.best(query, limit):
            found.append((tier, FileMatch(names.names[at], "", match_positions(query, names.names[at]))))
        for tier, at in defined.best(query, limit):
            path, symbol = paths[at], defined.names[at]
            marked = tuple(len(path) + 1 + one for one in match_positions(query, symbol))
            found.append((tier, FileMatch(path, symbol, marked)))
        return [hit for _, hit in sorted(found, key=lambda pair: pair[0])][:limit]

    def _members(self, path: str, symbol: str, limit: int) -> list[FileMatch]:
        """Return the definitions in a file that match `symbol`."""
        defined, paths = self._defined
        inside = [i for i, one in enumerate(paths) if f"/{one}".endswith(f"/{path}")]
        names = [defined.names[index] for index in inside]
        chosen = [at for _, at in Haystack(names, ".").best(symbol, limit)] if symbol else range(len(names))
        hits = [FileMatch(paths[inside[i]], names[i]) for i in chosen][:limit]
        return [FileMatch(hit.path, hit.symbol, match_positions(f":{symbol}", hit.name)[1:]) for hit in hits]

    def _refresh(self) -> None:
        """Start a new listing if the current one is old; wait for it only briefly if there is an older one."""
        first = not self.listed
        with self._lock:
            if not self._walking and (first or time.monotonic() - self._walked > LISTING_SECONDS):
                self._walking = True
                self._listed.clear()
                threading.Thread(target=self._walk, name="files", daemon=True).start()
        self._listed.wait(None if first else REFRESH_WAIT_SECONDS)

    def _walk(self) -> None:
        from localdflash.code.context.ignore import IgnoreRules
        from localdflash.code.context.listing import list_files

        try:
            listing = list_files(self.root, IgnoreRules(Path(self.root)))
            if listing.names != self._names.names:
                self._names = Haystack(listing.names, "/")
            if listing.cut:
                self._tell(f"only {len(listing.names):,} files of this folder are listed: the others go by their path")
        finally:
            self._walked, self._walking = time.monotonic(), False
            self._listed.set()
        if not self._closed and self._indexing.acquire(blocking=False):
            try:
                self._index()
            finally:
                self._indexing.release()

    def _index(self) -> None:
        """Copy the definitions of the workspace's index, which the first call starts."""
        if self.root in (os.path.realpath(Path.home()), os.path.realpath("/")):
            return  # everything that a user has is no project
        if self._workspace is None:
            from localdflash.code.context.index import Workspace

            self._workspace = Workspace([Path(self.root)], self._tell)
            self._workspace.start()
        workspace, settled = self._workspace, False
        while not settled and not self._closed:
            settled = workspace.settled(_INDEX_POLL_SECONDS)
            if (edition := workspace.edition) != self._edition:
                defined = workspace.definitions()
                names, paths = [one.qualified for one in defined], [one.path for one in defined]
                self._defined, self._edition = (Haystack(names, "."), paths), edition

    def _full(self, path: str) -> str:
        return os.path.abspath(os.path.join(self.root, path))

    def _allowed(self, path: str) -> str:
        """Return the path below the root, without links, of an allowed file; UsageError with the reason otherwise."""
        from localdflash.code.context.denied import is_secret
        from localdflash.code.context.files import clean_name
        from localdflash.code.context.ignore import IgnoreRules
        from localdflash.code.context.listing import VERSION_CONTROL

        shown = clean_name(path)
        try:
            lexical = self._full(path)
            real = os.path.realpath(lexical)
        except ValueError:  # a NUL in it
            raise UsageError(f"{shown}: no such file") from None
        if is_secret(PurePath(lexical)) or is_secret(PurePath(real)):
            raise UsageError(f"{shown}: its name is on the list of files that hold secrets: it is never read")
        top = self.root.rstrip("/") + "/"
        if real == self.root:
            raise UsageError(f"{shown}: is a folder: name a file in it")
        if not real.startswith(top):
            raise UsageError(f"{shown}: lies outside of this folder, where nothing is read")
        rules, below = IgnoreRules(Path(self.root)), real.removeprefix(top)
        places = [one.removeprefix(top) for one in (lexical, real) if one.startswith(top)]
        if VERSION_CONTROL & {part for place in places for part in place.split("/")}:
            raise UsageError(f"{shown}: belongs to version control, and is not read")
        if any(rules.ignored(place) for place in places):
            raise UsageError(f"{shown}: is left out by .gitignore or .localdflashignore: it is not read")
        if not os.path.isfile(real):
            what = "is a folder: name a file in it" if os.path.isdir(real) else "no such file"
            raise UsageError(f"{shown}: {what}")
        return below

    def _text(self, below: str) -> str:
        from localdflash.code.context.files import clean_name, read_bytes, read_signature

        shown, found = clean_name(below), read_signature(f"{self.root}/{below}")
        if found is not None and found.size > MAX_ATTACHED_BYTES:
            most = format_size(MAX_ATTACHED_BYTES)
            raise UsageError(f"{shown}: {format_size(found.size)}: at most {most} of a file can be attached")
        data = read_bytes(self.root, below)
        if data is None:
            raise UsageError(f"{shown}: cannot be read")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise UsageError(f"{shown}: is no text in UTF-8")
        return text

    def _tell(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)


def find_code_file(files: AttachableFiles) -> str:
    """Return the first code file at the top of the folder, by name, that may be used; "" if there is none."""
    from localdflash.text.syntax import language_of

    try:
        names = sorted(one.name for one in os.scandir(files.root) if not one.name.startswith(".") and one.is_file())
    except OSError:
        return ""
    return next((name for name in names if language_of(name) and files.relative(name)), "")


def format_size(count: int) -> str:
    """Return a number of bytes in a readable unit."""
    if count < 1024:
        return f"{count} bytes"
    return f"{count / 1024:.0f} KB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"


def _select_lines(name: str, part: str, text: str) -> str:
    first, _, last = part.partition("-")
    lines = text.splitlines(keepends=True)
    start, end = int(first), int(last or first)
    if not 1 <= start <= end:
        raise UsageError(f"{name}:{part}: lines are given as first-last, counted from 1")
    if end > len(lines):
        raise UsageError(f"{name}:{part}: the file has {len(lines)} lines")
    return "".join(lines[start - 1 : end])


def _select_definition(name: str, symbol: str, text: str) -> str:
    from localdflash.code.context.definitions import find_definitions
    from localdflash.text.syntax import language_of

    found = [one for one in find_definitions(name, language_of(name), text) if symbol in (one.qualified, one.name)]
    if not found:
        raise UsageError(f"{name} defines no {symbol}")
    first, last = min(found, key=lambda one: one.qualified != symbol).lines
    return "".join(text.splitlines(keepends=True)[first : last + 1])
