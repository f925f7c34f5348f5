"""Prompt for a server whose vocabulary is unknown: short pieces of text count as tokens."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from localdflash.base.errors import ModelError
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.prompt import MAX_PROMPT_TOKENS, assemble
from localdflash.lsp.foreign.pieces import InfillTask
from localdflash.text.fim_formats import FimFormat

# About what vocabularies for code have as one token; where they have longer ones, the estimate is on the safe side.
_PIECES = re.compile(r"\n[ \t]*| ?[A-Za-z_]{1,5}|[ \t]+|.", re.DOTALL)
DEFAULT_CONTEXT_TOKENS = 4096  # tokens, where a server does not say
CONTEXT_SHARE = 0.75  # of the context that is counted on: the estimate may be wrong


class Marker(str):
    """Marker of the model's format."""


Part = str | Marker
PLAIN = FimFormat("plain", "<before>", "<after>", "<typed>")  # for servers that have markers of their own


class PieceVocabulary:
    """`Vocabulary` whose ids are pieces of text, and whose special tokens are these markers."""

    ends: frozenset[int] = frozenset()

    def __init__(self, markers: Iterable[str], model: str = "") -> None:
        self._markers, self._model = tuple(markers), model
        self._ids: dict[str, int] = {}  # by piece, in their order

    def encode(self, text: str, *, continues: bool = False) -> list[int]:
        """See `Vocabulary`."""
        return [self._ids.setdefault(piece, len(self._ids)) for piece in _PIECES.findall(text)]

    def special(self, spelling: str) -> int:
        """See `Vocabulary`: a negative id."""
        if not self.has_special(spelling):
            raise ModelError(f"vocabulary: {spelling!r} is not a single special token of this model")
        return -1 - self._markers.index(spelling)

    def has_special(self, spelling: str) -> bool:
        """See `Vocabulary`."""
        return spelling in self._markers

    def bos(self) -> int | None:
        """See `Vocabulary`. None: the server adds it."""
        return None

    def metadata(self, key: str) -> str | None:
        """See `Vocabulary`."""
        return self._model if key == "general.name" else None

    def parts(self, ids: Sequence[int]) -> list[Part]:
        """Return the text of these ids, and the markers in it."""
        parts: list[Part] = []
        text, pieces = list[str](), list(self._ids)
        for one in ids:
            if one >= 0:
                text.append(pieces[one])
                continue
            parts += ["".join(text), Marker(self._markers[-1 - one])]
            text = []
        return [part for part in (*parts, "".join(text)) if part]


class PromptBuilder:
    """Builder of prompts in one format. `markers` are those of the model, and `context` its size in tokens."""

    def __init__(self, form: FimFormat, markers: Iterable[str] = (), context: int = 0) -> None:
        known = {*form.markers, *markers}
        self.form = form if known.issuperset(form.files or ()) else replace(form, files=None)
        self._pieces = PieceVocabulary(known)
        self._encoder = Encoder(self._pieces)
        self._context = int((context or DEFAULT_CONTEXT_TOKENS) * CONTEXT_SHARE)
        own = "|".join(map(re.escape, (*form.markers, *form.stops, *(form.files or ()))))
        self._spelled = re.compile(rf"{own}|<\|\w+\|>|</?s>")

    def parts(self, task: InfillTask, word: str = "") -> list[Part]:
        """Return the prompt of a task, without the `word` at its cursor, which will be sampled."""
        gap = task.gap.without(word)
        most = min(MAX_PROMPT_TOKENS, self.form.max_prompt_tokens)
        prompt = assemble(self._encoder, self.form, self._context, gap, task.others, task.max_tokens, word, most)
        return self._pieces.parts(prompt.ids)

    def broken(self, text: str) -> list[str]:
        """Return code, split inside of whatever spells a marker."""
        cuts = [found.start() + 1 for found in self._spelled.finditer(text)]
        return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def render(self, task: InfillTask) -> str:
        """Return the prompt of a task as one text. A marker in code gets a blank inside, which disarms it."""
        parts = self.parts(task)
        return "".join(part if isinstance(part, Marker) else " ".join(self.broken(part)) for part in parts)


class PrefixSuffixBuilder:
    """Builder of the texts before and after a cursor, for servers that build the prompt themselves."""

    def __init__(self, context: int = 0) -> None:
        self._prompts = PromptBuilder(PLAIN, context=context)

    def split(self, task: InfillTask, word: str = "") -> tuple[str, str]:
        """Return the text before the cursor, with other code first, and the text after it."""
        before, after, side = "", "", 0
        for part in self._prompts.parts(task, word):
            if isinstance(part, Marker):
                side += part == PLAIN.suffix
                side -= part == PLAIN.middle
            elif side:
                after += part
            else:
                before += part
        return before, after
