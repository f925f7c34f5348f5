"""Code from elsewhere for a request. New context invalidates the KV cache, so it is looked up in typing pauses."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from pygls.uris import to_fs_path

from localdflash.code.context.context import ContextPiece, OpenFile
from localdflash.code.context.denied import Refusal, is_secret
from localdflash.code.context.edits import EditHistory
from localdflash.code.context.gather import NEAR_LINES, gather
from localdflash.code.context.index import Workspace
from localdflash.code.next_edit.trail import LineEdit
from localdflash.lsp.document import Document, line_feeds
from localdflash.text.syntax import language_of

MAX_REPLACED_TEXTS = 8  # texts that edits removed; the engine copies drafts from them
CELL_SCHEME = "vscode-notebook-cell"  # scheme of URIs whose path names a notebook, and whose fragment names a cell
MAX_NEIGHBOURS = 8  # open files that are searched
MAX_EDITS = 8  # recent edits in the prompt


class EditorContext:
    """Context for all documents of a client. `documents` are the open documents."""

    def __init__(self, roots: Sequence[Path], documents: Mapping[str, Document], warn: Callable[[str], None]) -> None:
        self._roots, self._documents, self._warn = list(roots), documents, warn
        self._workspace = Workspace(roots, warn)
        self._edits = EditHistory()
        self._parts: dict[str, list[ContextPiece]] = {}  # context of each document, by URI
        self._lookup_lines: dict[str, int] = {}  # line of each document's last lookup
        self._recent: dict[str, None] = {}  # open documents, the most recently used last
        self._lookup_lock = asyncio.Lock()
        self._on_indexed: Callable[[], None] = lambda: None

    def start(self, on_indexed: Callable[[], None]) -> None:
        """Index the workspace in the background. `on_indexed` is called from a thread whenever that is done."""
        self._on_indexed = on_indexed
        self._workspace.start(on_indexed)

    def close(self) -> None:
        """Stop watching the workspace."""
        self._workspace.close()

    def update_folders(self, added: Sequence[Path], removed: Sequence[Path | None]) -> None:
        """Add and remove folders of the workspace; their files are read in the background."""
        kept = [root for root in self._roots if root not in removed]
        self._roots = [*kept, *(root for root in added if root not in kept)]
        self._workspace = Workspace(self._roots, self._warn, self._workspace)
        self._workspace.start(self._on_indexed)

    def refusal(self, uri: str) -> Refusal | None:
        """Return why a document may not be put into prompts."""
        if path := path_of(uri):
            return self._workspace.refusal(path)
        return Refusal.SECRET if is_secret(PurePosixPath(_path_in_uri(uri))) else None

    def describe(self, uri: str) -> dict[str, Any]:
        """Return the fields of a request that describe the document and its surroundings."""
        name, parts = self._name(uri), self._parts.get(uri, [])
        return {
            "path": name,
            "language": language_of(name, self._documents[uri].language),
            "context": [{"kind": p.kind, "name": p.name, "text": p.text, "weight": p.weight} for p in parts],
            "copies": self._edits.replaced_texts(MAX_REPLACED_TEXTS),
        }

    def opened(self, uri: str) -> None:
        """Mark a document as recent, and index its file again."""
        self._mark_recent(uri)
        self.saved(uri)

    def changed(self, document: Document, changes: Sequence[LineEdit]) -> None:
        """Record the changes of one notification."""
        self._mark_recent(document.uri)
        if self.refusal(document.uri) is None:
            name = self._name(document.uri)
            for line, old, new in changes:
                self._edits.changed(document.uri, name, line, old, new, time.monotonic())

    def saved(self, uri: str) -> None:
        """Index a file again after it was saved."""
        if path := path_of(uri):
            self._workspace.refresh(path)

    def closed(self, uri: str) -> None:
        """Forget a document's context, and the edits of one without a file."""
        self._parts.pop(uri, None)
        self._lookup_lines.pop(uri, None)
        self._recent.pop(uri, None)
        if path_of(uri) is None:
            self._edits.forget(uri)  # it may be saved as a secret file later

    def is_far(self, uri: str, line: int) -> bool:
        """Return whether context was last looked up far from this line, or never."""
        return uri not in self._lookup_lines or abs(self._lookup_lines[uri] - line) > NEAR_LINES

    async def look_up(self, uri: str, line: int, *, if_far: bool = False) -> bool:
        """Look up the context of a cursor; return whether it differs from that of the last lookup.

        `if_far`: only if `is_far` still holds once the lookups of earlier requests have ended.
        """
        async with self._lookup_lock:
            document = self._documents.get(uri)
            if document is None or (if_far and not self.is_far(uri, line)):
                return False
            near = [other for other in reversed(self._recent) if other != uri and other in self._documents]
            allowed = [other for other in near[:MAX_NEIGHBOURS] if self.refusal(other) is None]
            others = [self._neighbour(self._documents[other]) for other in allowed]
            diffs = self._edits.diffs(MAX_EDITS, (uri, line))
            parts = await asyncio.to_thread(self._gather, self._file(document), line, others, diffs)
        if uri not in self._documents:
            return False
        self._lookup_lines[uri] = line
        if parts == self._parts.get(uri, []):
            return False
        self._parts[uri] = parts
        return True

    def _gather(
        self, current: OpenFile, line: int, others: Sequence[OpenFile], diffs: Sequence[ContextPiece]
    ) -> list[ContextPiece]:
        for edit in self._edits.edits():
            if not self._workspace.allowed_name(edit.name):  # it was allowed when the edit was recorded
                self._edits.forget(edit.document)
        return gather(self._workspace, current, line, others, diffs)

    def _mark_recent(self, uri: str) -> None:
        self._recent.pop(uri, None)
        self._recent[uri] = None

    def _file(self, document: Document) -> OpenFile:
        name = self._name(document.uri)
        return OpenFile(path_of(document.uri), name, language_of(name, document.language), line_feeds(document.text))

    def _neighbour(self, document: Document) -> OpenFile:
        """Return another open document; a notebook's cell gets its own name."""
        file, parts = self._file(document), urlsplit(document.uri)
        return replace(file, name=f"{file.name}#{parts.fragment}") if parts.scheme == CELL_SCHEME else file

    def _name(self, uri: str) -> str:
        """Return a document's path relative to its outermost workspace folder; only its name if it is in none."""
        path = path_of(uri)
        if path is None:
            return _path_in_uri(uri).rpartition("/")[2] or "untitled"
        names = [path.relative_to(root).as_posix() for root in self._roots if path.is_relative_to(root)]
        return max(names, key=len, default=path.name)


def path_of(uri: str) -> Path | None:
    """Return the path of a file: URI on this machine, or of a notebook's cell; None for any other URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme == CELL_SCHEME:
        uri = parts._replace(scheme="file", fragment="").geturl()
    elif parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        return None
    path = to_fs_path(uri)
    return Path(path) if path and "\0" not in path else None


def _path_in_uri(uri: str) -> str:
    """Return the path in a URI that names no file on this machine; "" if the URI is invalid."""
    try:
        return unquote(urlsplit(uri).path).replace("\\", "/")
    except ValueError:
        return ""
