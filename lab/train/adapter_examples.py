"""FIM examples: the prompts that `code/fim` builds, continued by the missing text.

The word at the cursor is left out of the prompt and generated again, as token healing does. Everything after the middle
marker is learned.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localdflash.code.context.context import ContextPiece, OpenFile
from localdflash.code.context.edits import EditHistory
from localdflash.code.context.gather import gather
from localdflash.code.context.index import Workspace
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.healing import unfinished_word
from localdflash.code.fim.prompt import MIN_ANSWER_TOKENS, Gap, assemble
from localdflash.lab.train.adapter_holes import Holes, TrainingHole
from localdflash.text.fim_formats import FimFormat
from localdflash.text.syntax import language_of

CONTEXT = 4096
PROMPTS = {192: 0.15, 320: 0.3, 448: 0.3, 640: 0.2, 1024: 0.05}  # tokens of a prompt, at most
FIRST_ORDER = 0.65  # of the prompts that have prefix and suffix in the format's own order; others have the other
WITH_OTHERS, WITH_EDITS, UNHEALED = 0.5, 0.25, 0.05
CHARACTERS = 2400  # of other code
_RENAMED = ("result", "value", "item", "data", "name", "count", "path", "node", "entry", "total")


@dataclass(frozen=True)
class FillExample:
    """FIM example: ids, of which those from `prompt` on are learned."""

    ids: list[int]
    prompt: int
    language: str
    kind: str


@dataclass(frozen=True)
class FimScene:
    """Gap in a file, with the other code of its prompts."""

    name: str
    language: str
    text: str
    hole: TrainingHole
    others: list[ContextPiece]

    @property
    def after(self) -> str:
        """Return the text after the gap."""
        return "" if self.hole.is_open else self.text[self.hole.end :]


class FillExamples:
    """Generator of examples from the sources of one package, which lie below `root`."""

    def __init__(self, encoder: Encoder, form: FimFormat, root: Path, texts: Mapping[str, str]) -> None:
        self._encoder, self._root, self._texts = encoder, root, texts
        self.form = form
        self._forms = (form, replace(form, order="psm" if form.order == "spm" else "spm"))
        self._middle = encoder.tokenizer.special(form.middle or "")
        self._end = encoder.tokenizer.special(form.stops[0])
        self._holes: dict[str, Holes] = {}
        self._workspace = Workspace([root], lambda _: None)
        self._workspace.start()
        self._workspace.settled(60.0)

    def close(self) -> None:
        """Close the workspace."""
        self._workspace.close()

    def draw(self, name: str, rng: random.Random) -> FillExample:
        """Return a random example of one file."""
        scene = self.scene(name, rng)
        hole = scene.hole
        word = word_to_heal(scene.text[: hole.start], rng)
        form = self._forms[rng.random() >= FIRST_ORDER]
        most = rng.choices(list(PROMPTS), list(PROMPTS.values()))[0]
        prompt = self.prompt(scene, hole.start, word, form, most)
        answer = self._encoder.text(word + scene.text[hole.start : hole.end])
        ids = [*prompt, *answer, *([] if hole.is_open else [self._end])]
        return FillExample(ids, prompt.index(self._middle) + 1, scene.language, hole.kind)

    def scene(self, name: str, rng: random.Random) -> FimScene:
        """Return a random gap in one file."""
        text, language = self._texts[name], language_of(name)
        if name not in self._holes:
            self._holes[name] = Holes(language, text)
        hole = self._holes[name].draw(rng)
        rest = text[: hole.start] + ("" if hole.is_open else text[hole.end :])
        others = self._others(OpenFile(self._root / name, name, language, rest), hole, rng)
        return FimScene(name, language, text, hole, others)

    def prompt(self, scene: FimScene, cursor: int, word: str, form: FimFormat, most: int) -> list[int]:
        """The ids, at most `most`, that a completion at this character is asked with; `word` is left to be drawn."""
        place = Gap(scene.name, scene.language, scene.text[: cursor - len(word)], "", scene.after)
        return assemble(self._encoder, form, CONTEXT, place, scene.others, MIN_ANSWER_TOKENS, word, most).ids

    def _others(self, file: OpenFile, hole: TrainingHole, rng: random.Random) -> list[ContextPiece]:
        edits, line = EditHistory(), file.text.count("\n", 0, hole.start)
        if rng.random() < WITH_EDITS:
            self._edit(edits, file, line, rng)
        if rng.random() < WITH_OTHERS:
            return gather(self._workspace, file, line, self._open(file, rng), edits, CHARACTERS)
        return edits.diffs(4)

    def _open(self, file: OpenFile, rng: random.Random) -> Sequence[OpenFile]:
        """Return other files of the package that an editor might have open."""
        names = [name for name in self._texts if name != file.name and language_of(name) == file.language]
        chosen = rng.sample(names, min(len(names), rng.randint(0, 2)))
        return [OpenFile(self._root / name, name, file.language, self._texts[name]) for name in chosen]

    def _edit(self, edits: EditHistory, file: OpenFile, cursor: int, rng: random.Random) -> None:
        """Simulate recent edits of lines away from the cursor: new lines, or a renamed identifier."""
        lines = file.text.split("\n")
        for turn in range(rng.randint(1, 3)):
            first = rng.randrange(len(lines))
            new = lines[first : first + rng.randint(1, 4)]
            if abs(first - cursor) < 12 or not "".join(new).strip():
                continue
            words = [word for word in "".join(new).replace("(", " ").replace(".", " ").split() if word.isidentifier()]
            word = rng.choice(words) if words else ""
            old = [line.replace(word, rng.choice(_RENAMED)) for line in new] if word and rng.random() < 0.6 else []
            edits.changed(file.name, first, old, new, 60.0 * turn)


def word_to_heal(before: str, rng: random.Random) -> str:
    """The word that ends a text and is drawn again; sometimes none, as for clients that ask without healing."""
    return unfinished_word(before.rpartition("\n")[2]) if rng.random() >= UNHEALED else ""
