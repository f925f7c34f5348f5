"""Workspace with files, and the changes that answers propose."""

from collections.abc import Mapping
from pathlib import Path

from localdflash.chat.proposals import FileProposal, propose

BOX = '''\
"""Boxes."""

import math


# The area.
def area(w, h):
    return w * h


class Box:
    def __init__(self, w, h):
        self.w = w
        self.h = h

    @property
    def size(self):
        return area(self.w, self.h)

    def grow(self):
        self.w += 1


if __name__ == "__main__":
    print(area(1, 2))
'''


def make_files(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Create these files below a root; return the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


def after(root: Path, answer: str, path: str = "src/box.py", attached: tuple[str, ...] = ()) -> str:
    """Return the new text of the only file that an answer changes."""
    found = propose(answer, root, attached)
    assert [(one.path, one.problem) for one in found] == [(path, "")]
    assert found[0].after is not None
    return found[0].after.decode()


def problem(root: Path, answer: str, attached: tuple[str, ...] = ()) -> str:
    """Return why the only block of an answer cannot be applied."""
    found = propose(answer, root, attached)
    assert len(found) == 1
    assert found[0].problem
    assert found[0].after is None
    assert "\n" not in found[0].problem
    return found[0].problem


def proposal(root: Path, path: str, text: bytes | None) -> FileProposal:
    """Return a proposal that replaces the current content of a file."""
    file = root / path
    before = file.read_bytes() if file.exists() else None
    return FileProposal(path, before, text, "new" if before is None else "delete" if text is None else "change")


def contents(root: Path) -> dict[str, bytes]:
    """Return the content of all files, by relative path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
