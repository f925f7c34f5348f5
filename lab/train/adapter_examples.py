"""FIM examples: the prompts that `code/fim` builds, followed by the missing text.

As in token healing, the unfinished word at the cursor is removed from the prompt and generated again. Everything after
the middle marker is learned.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from localdflash.code.context.context import ContextPiece, OpenFile
from localdflash.code.context.edits import EditHistory
from localdflash.code.context.gather import gather
from localdflash.code.context.index import Workspace
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.healing import unfinished_word
from localdflash.code.fim.prompt import MIN_ANSWER_TOKENS, Gap, assemble
from localdflash.lab.train.adapter_data import FimExample
from localdflash.lab.train.adapter_gaps import GapSampler, TrainingGap
from localdflash.text.fim_formats import FimFormat
from localdflash.text.syntax import language_of

CONTEXT = 4096  # tokens of the context for which prompts are assembled
PROMPTS = {192: 0.15, 320: 0.3, 448: 0.3, 640: 0.2, 1024: 0.05}  # maximum tokens of a prompt -> share of the prompts
FORMAT_ORDER_SHARE = 0.65  # share of prompts with prefix and suffix in the format's order; others are reversed
# Shares of prompts: with code from other files, with recent edits, without token healing.
OTHER_CODE_SHARE, EDITS_SHARE, UNHEALED_SHARE = 0.5, 0.25, 0.05
MAX_OTHER_CODE_CHARS = 2400
_OLD_NAMES = ("result", "value", "item", "data", "name", "count", "path", "node", "entry", "total")


@dataclass(frozen=True)
class FimScene:
    """Gap in a file, with context for its prompts."""

    name: str
    language: str
    text: str
    gap: TrainingGap
    others: list[ContextPiece]  # code from other files, and recent edits

    @property
    def after(self) -> str:
        """Return the text after the gap; "" for an open gap, which has nothing after it."""
        return "" if self.gap.is_open else self.text[self.gap.end :]


class FimExampleSampler:
    """Sampler of FIM examples from the sources of one package, which lie below `root`; `texts` is by path."""

    def __init__(self, encoder: Encoder, form: FimFormat, root: Path, texts: Mapping[str, str]) -> None:
        self._encoder, self._root, self._texts = encoder, root, texts
        self.form = form
        self._orders = (form, replace(form, order="psm" if form.order == "spm" else "spm"))
        self._middle = encoder.tokenizer.special(form.middle or "")
        self._end = encoder.tokenizer.special(form.stops[0])
        self._samplers: dict[str, GapSampler] = {}
        self._workspace = Workspace([root], lambda _: None)
        self._workspace.start()
        self._workspace.settled(60.0)

    def close(self) -> None:
        """Close the workspace."""
        self._workspace.close()

    def sample(self, name: str, rng: random.Random) -> FimExample:
        """Return a random example of one file."""
        scene = self.sample_scene(name, rng)
        gap = scene.gap
        word = word_to_heal(scene.text[: gap.start], rng)
        form = self._orders[rng.random() >= FORMAT_ORDER_SHARE]
        max_tokens = rng.choices(list(PROMPTS), list(PROMPTS.values()))[0]
        prompt = self.build_prompt(scene, gap.start, word, form, max_tokens)
        answer = self._encoder.text(word + scene.text[gap.start : gap.end])
        ids = [*prompt, *answer, *([] if gap.is_open else [self._end])]
        return FimExample(np.array(ids), prompt.index(self._middle) + 1, scene.language, gap.kind)

    def sample_scene(self, name: str, rng: random.Random) -> FimScene:
        """Return a random gap in one file, with context."""
        text, language = self._texts[name], language_of(name)
        if name not in self._samplers:
            self._samplers[name] = GapSampler(language, text)
        gap = self._samplers[name].sample(rng)
        remaining_text = text[: gap.start] + ("" if gap.is_open else text[gap.end :])
        others = self._other_code(OpenFile(self._root / name, name, language, remaining_text), gap, rng)
        return FimScene(name, language, text, gap, others)

    def build_prompt(self, scene: FimScene, cursor: int, word: str, form: FimFormat, max_tokens: int) -> list[int]:
        """Return a prompt of at most `max_tokens` ids for a cursor at this character, without `word` before it."""
        gap = Gap(scene.name, scene.language, scene.text[: cursor - len(word)], "", scene.after)
        return assemble(self._encoder, form, CONTEXT, gap, scene.others, MIN_ANSWER_TOKENS, word, max_tokens).ids

    def _other_code(self, file: OpenFile, gap: TrainingGap, rng: random.Random) -> list[ContextPiece]:
        edits, line = EditHistory(), file.text.count("\n", 0, gap.start)
        if rng.random() < EDITS_SHARE:
            self._simulate_edits(edits, file, line, rng)
        diffs = edits.diffs(4)
        if rng.random() < OTHER_CODE_SHARE:
            return gather(self._workspace, file, line, self._sample_open_files(file, rng), diffs, MAX_OTHER_CODE_CHARS)
        return diffs

    def _sample_open_files(self, file: OpenFile, rng: random.Random) -> Sequence[OpenFile]:
        """Return other files of the package that an editor might have open."""
        names = [name for name in self._texts if name != file.name and language_of(name) == file.language]
        chosen = rng.sample(names, min(len(names), rng.randint(0, 2)))
        return [OpenFile(self._root / name, name, file.language, self._texts[name]) for name in chosen]

    def _simulate_edits(self, edits: EditHistory, file: OpenFile, cursor_line: int, rng: random.Random) -> None:
        """Add to `edits` recent edits of lines away from the cursor: new lines, or a renamed identifier."""
        lines = file.text.split("\n")
        for turn in range(rng.randint(1, 3)):
            first = rng.randrange(len(lines))
            new = lines[first : first + rng.randint(1, 4)]
            if abs(first - cursor_line) < 12 or not "".join(new).strip():
                continue
            words = [word for word in "".join(new).replace("(", " ").replace(".", " ").split() if word.isidentifier()]
            word = rng.choice(words) if words else ""
            old = [line.replace(word, rng.choice(_OLD_NAMES)) for line in new] if word and rng.random() < 0.6 else []
            edits.changed(file.name, file.name, first, old, new, 60.0 * turn)


def word_to_heal(before: str, rng: random.Random) -> str:
    """Return the unfinished word at the end of a text; sometimes "", as for a client without token healing."""
    return unfinished_word(before.rpartition("\n")[2]) if rng.random() >= UNHEALED_SHARE else ""
