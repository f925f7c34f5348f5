"""Prompt for a server whose vocabulary is unknown: short pieces of text count as tokens."""

import re
from collections.abc import Sequence

from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.prompt import MAX_PROMPT_TOKENS, Gap, assemble
from localdflash.text.fim_formats import FimFormat

# About one token each in vocabularies for code; where tokens are longer, the count is too high, which is safe.
_PIECES = re.compile(r"\n[ \t]*| ?[A-Za-z_]{1,5}|[ \t]+|.", re.DOTALL)
DEFAULT_CONTEXT_TOKENS = 4096  # if the server does not report its context
CONTEXT_SHARE = 0.75  # share of the context that a prompt may use; its tokens are only estimated
MAX_STOP_STRINGS = 4  # stop strings per request
_SIDES = FimFormat("sides", "\0before", "\0after", "\0typed")  # used if the server builds the prompt itself


class PieceVocabulary:
    """`Vocabulary` whose ids are pieces of text, and whose special tokens are the markers of a format."""

    def __init__(self, form: FimFormat) -> None:
        self._markers = (*form.markers, *(form.file_tokens or ()))
        self._ids: dict[str, int] = {}  # id of each piece, ascending

    def encode(self, text: str, *, continues: bool = False) -> list[int]:
        """See `Vocabulary`."""
        return [self._ids.setdefault(piece, len(self._ids)) for piece in _PIECES.findall(text)]

    def special(self, spelling: str) -> int:
        """See `Vocabulary`: a negative id."""
        return -1 - self._markers.index(spelling)

    def bos(self) -> int | None:
        """See `Vocabulary`. None: the server adds it."""
        return None

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the texts between the markers of a prompt, and each marker after the text before it."""
        texts, pieces = [""], list(self._ids)
        for token in ids:
            if token < 0:
                texts += [self._markers[-1 - token], ""]
            else:
                texts[-1] += pieces[token]
        return texts


class RemotePrompt:
    """Builder of prompts in a format. If the format is None, the prompt is the texts before and after the cursor."""

    def __init__(self, form: FimFormat | None, context: int = 0) -> None:
        self.form = form
        self._layout = form or _SIDES
        self._pieces = PieceVocabulary(self._layout)
        self._encoder = Encoder(self._pieces)
        self._context = int((context or DEFAULT_CONTEXT_TOKENS) * CONTEXT_SHARE)
        markers = (*self._layout.markers, *self._layout.stops, *(self._layout.file_tokens or ()))
        self._spelled_markers = re.compile("|".join([*map(re.escape, markers), r"<\|\w+\|>", "</?s>"]))

    def fields(self, gap: Gap, others: Sequence[ContextPiece], max_tokens: int) -> dict[str, object]:
        """Return the fields of a request that hold the prompt. Markers that occur in the code get a space inside."""
        texts = self.texts(gap, others, max_tokens)
        texts[::2] = [self._spelled_markers.sub(_break_marker, text) for text in texts[::2]]
        if self.form is None:
            head, _, before, _, after, _, typed = texts
            return {"prompt": head + before + typed, "suffix": after}
        stops = [*self.form.stop_strings, *self.form.markers, *self.form.stops]
        return {"prompt": "".join(texts), "stop": stops[:MAX_STOP_STRINGS]}

    def texts(self, gap: Gap, others: Sequence[ContextPiece], max_tokens: int) -> list[str]:
        """Return a prompt as the texts between its markers, and the markers."""
        limit = min(MAX_PROMPT_TOKENS, self._layout.max_prompt_tokens)
        prompt = assemble(self._encoder, self._layout, self._context, gap, others, max_tokens, max_prompt_tokens=limit)
        return self._pieces.texts(prompt.ids)


def _break_marker(marker: re.Match[str]) -> str:
    return f"{marker[0][0]} {marker[0][1:]}"
