"""A completion request for a remote server: the gap, and how to sample the text."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.extent import Extent, Mode, find_extent
from localdflash.code.fim.presentable import PresentableEnding
from localdflash.code.fim.prompt import Gap
from localdflash.code.fim.python_lines import missing_blanks
from localdflash.code.fim.sound import Soundness
from localdflash.text.syntax import language_of

SHAPING = ("top_k", "top_p", "min_p", "repetition_penalty")
VARIED_TEMPERATURE = 0.8  # temperature of all texts of a place but the first


@dataclass(frozen=True)
class Sampling:
    """How to sample one text; greedy at temperature 0. `shaping`: other parameters by our names."""

    temperature: float = 0.0
    seed: int = 0
    shaping: Mapping[str, float] = field(default_factory=dict)

    def fields(self) -> dict[str, object]:
        """Return the parameters by their usual names."""
        return {"temperature": self.temperature, "seed": self.seed, **self.shaping}


@dataclass(frozen=True)
class InfillTask:
    """A gap, other code, and limits of the text. `max_tokens` 0: the server may read the prompt ahead of a request."""

    hole: Gap
    others: tuple[ContextPiece, ...]
    mode: Mode
    max_tokens: int
    count: int
    least_sure: float  # 0: the user asked for it
    draw: Sampling
    lead: str = ""  # blanks at the end of the hole's middle that the file does not have, and every text begins with

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "InfillTask":
        """Return the task of the body of a POST /complete, as our own engine gets it."""
        path = " ".join(body.get("path", "").split())
        language, sides = language_of(path, body.get("language", "")), (body["prefix"], body["middle"], body["suffix"])
        before, middle, after = (side.replace("\r\n", "\n") for side in sides)
        hole = Gap(path, language, before, middle, after, body.get("first_line", 0), body.get("closed", ""))
        context = [{**part, "name": " ".join(part["name"].split())} for part in body.get("context", ())]
        shaping = {name: body[name] for name in SHAPING if name in body}
        task = cls(
            hole,
            tuple(ContextPiece(**part) for part in context),
            body.get("mode", "auto"),
            body["max_tokens"],
            body.get("count", 1) if body["max_tokens"] else 1,
            body.get("least_sure", 0.0),
            Sampling(body.get("temperature", 0.0), body.get("seed") or 0, shaping),
        )
        lead = missing_blanks(task.extent())  # blanks that a statement needs at the cursor
        return replace(task, hole=replace(hole, middle=hole.middle + lead), lead=lead) if lead else task

    @property
    def before(self) -> str:
        """Return all text before the cursor."""
        return self.hole.prefix + self.hole.middle

    @property
    def line(self) -> str:
        """Return the cursor's line, up to the cursor."""
        return self.before.rpartition("\n")[2]

    def extent(self) -> Extent:
        """Return the extent of a text here."""
        return find_extent(self.hole.language, self.before, self.hole.suffix, self.mode)

    def ending(self, word: str) -> PresentableEnding:
        """Return the ending of a text that begins with a word."""
        extent, texts = self.extent(), (self.before, self.hole.suffix, *(one.text for one in self.others))
        sound = Soundness.at(extent, self.before, self.hole.suffix, self.hole.closed)
        return PresentableEnding.at(extent, sound, texts, word, self.least_sure, self.lead)

    def draws(self) -> list[Sampling]:
        """Return how to sample each requested text: the first as requested, others varied."""
        first = self.draw
        hot = max(first.temperature, VARIED_TEMPERATURE)
        return [first, *(replace(first, temperature=hot, seed=first.seed + one) for one in range(1, self.count))]
