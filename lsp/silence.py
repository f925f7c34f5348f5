"""Why a document gets no suggestions: the line that the editor's status shows."""

import sys

from localdflash.code.context.refusal import Refusal
from localdflash.lsp.document import Document

LARGEST = 4_000_000  # characters of a document that is worth completing
LONGEST_LINE = 5_000  # characters: what has longer ones was not written by hand


def silence(document: Document | None, refusal: Refusal | None, *, manual: bool) -> str:
    """What keeps suggestions from a document; "" where nothing does. `manual`: somebody asks for them by hand."""
    reason = _reason(document, None if manual and refusal is Refusal.GIT else refusal)
    return reason and f"no suggestions here: {reason}"


def _reason(document: Document | None, refusal: Refusal | None) -> str:
    if document is None:
        return "the file is too large, or was not opened"
    if refusal:
        return f"{refusal.value}; ask by hand" if refusal is Refusal.GIT else refusal.value
    if document.size > LARGEST:
        return "the file has more than 4 million characters"
    if not document.is_text(LARGEST, sys.maxsize):
        return "the file is not text"
    return "" if document.is_text(LARGEST, LONGEST_LINE) else f"a line has more than {LONGEST_LINE} characters"
