"""Contents of the editor's status line: counts of suggestions, kept in memory, and why a document gets none."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from localdflash.code.context.denied import Refusal
from localdflash.lsp.document import Document

MAX_LINE_CHARS = 5_000  # a file with a longer line is taken for generated
StatusKind = Literal["Normal", "Error", "Inactive"]


class SuggestionOrigin(NamedTuple):
    """Origin of a suggestion: document, language, and kind of cursor position (see `usage`)."""

    uri: str
    language: str
    kind: str


@dataclass
class Tally:
    """Counts of suggestions. Each counts once, however often it is shown or in however many parts it is accepted."""

    model: str = ""
    trouble: str = ""  # error of the engine or its connection
    silence_reason: str = ""  # why the newest request's document gets no suggestions
    tau: float | None = None  # tokens per verify step in the last generation
    tokens_per_second: float | None = None
    _offered: dict[str, SuggestionOrigin] = field(default_factory=dict)
    _shown: set[str] = field(default_factory=set)  # shown suggestions; some clients do not report them
    _accepted: set[str] = field(default_factory=set)

    def offered(self, name: str, origin: SuggestionOrigin) -> bool:
        """Count a suggestion sent as an answer; return whether it is new."""
        is_new = name not in self._offered
        self._offered.setdefault(name, origin)
        return is_new

    def shown(self, name: str) -> None:
        """Count a suggestion that the client reports as shown."""
        if name in self._offered:
            self._shown.add(name)

    def accepted(self, name: str) -> SuggestionOrigin | None:
        """Count an accepted suggestion or part; return its origin, or None unless it is the first part."""
        if name in self._accepted or name not in self._offered:
            return None
        self._accepted.add(name)
        return self._offered[name]

    def status(self, busy: bool) -> dict[str, Any]:
        """Return the parameters of the status notification."""
        kind: StatusKind = "Error" if self.trouble else "Inactive" if self.silence_reason else "Normal"
        return {
            "kind": kind,
            "busy": busy,
            "message": self.trouble or self.silence_reason,
            "model": self.model,
            "tau": self.tau,
            "tokensPerSecond": self.tokens_per_second,
            "shown": len(self._shown or self._offered),
            "accepted": len(self._accepted),
        }


def silence_reason(document: Document | None, refusal: Refusal | None, *, manual: bool) -> str:
    """Return why a document gets no suggestions; "" if it gets them. `manual`: the user requested a suggestion."""
    if manual and refusal is Refusal.GIT:
        refusal = None
    if document is None:
        reason = "the file is too large, or was not opened"
    elif refusal:
        reason = f"{refusal.value}; ask by hand" if refusal is Refusal.GIT else refusal.value
    elif "\0" in document.text:
        reason = "the file is not text"
    elif document.longest_line() > MAX_LINE_CHARS:
        reason = f"a line has more than {MAX_LINE_CHARS} characters"
    else:
        return ""
    return f"no suggestions here: {reason}"
