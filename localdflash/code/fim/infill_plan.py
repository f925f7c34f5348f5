"""Turn a place in a file into what the engine runs, for one loaded pair: prompt, beginning of the answer, its end."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from localdflash.base.errors import ContextOverflow
from localdflash.code.fim.choices import DistinctStart
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.extent import Extent, Mode, find
from localdflash.code.fim.healing import Healing, Spellings, unfinished_word
from localdflash.code.fim.presentable import PresentableEnding
from localdflash.code.fim.prompt import MOST, Gap, InfillContext, InfillPrompt, assemble
from localdflash.code.fim.python_lines import missing_blanks
from localdflash.code.fim.sound import Soundness
from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.text.fim import check_place, stop_ids

COPIED = 1024  # tokens of texts that drafts may be copied from; each costs some microseconds when they change
SPARE = 3  # answers more than are asked for, in place of those that end at once
VARIED = 0.8  # temperature of choices but the first, where nothing else tells them apart
PATIENCE = 0.1  # seconds: the first key does not wait for a large vocabulary; who asks by hand does


@dataclass(frozen=True)
class InfillPlan:
    """The completions of one place: a request for each, and what they share. Those behind the number that was asked
    for are in place of empty ones.
    """

    prompt: InfillPrompt
    requests: Sequence[Request]
    stops: tuple[str, ...]
    extent: Extent
    sound: Callable[[str], bool]
    texts: Sequence[str]  # the file and other code
    word: str  # what every answer begins with, for it stands before the cursor
    lead: str  # blanks that every answer begins with, which the prompt has already
    least_sure: float  # see `Stopping`

    def ending(self) -> PresentableEnding:
        """What ends the text of one of them; 0 for `least_sure` says that the user asked."""
        return PresentableEnding.at(self.extent, self.sound, self.texts, self.word, self.least_sure, self.lead)


class InfillPlanner:
    """Makes completions for one pair; ModelError if it was not trained to fill in the middle. Safe for several
    threads.
    """

    def __init__(self, loaded: LoadedPair, patience: float | None = PATIENCE) -> None:
        """`patience`: seconds that a completion nobody asked for waits for the spellings, without which it is not
        healed; None: forever, as whoever asks waits.
        """
        self._context, self._form, self._patience = loaded.context, loaded.fim_format(), patience  # not the pair itself
        self._encoder = Encoder(loaded.tokenizer)
        self._ends = stop_ids(self._form, loaded.tokenizer)
        self._spellings = _prepare_spellings(loaded)

    def fill(
        self,
        hole: Gap,
        others: Sequence[InfillContext] = (),
        copies: Sequence[str] = (),
        *,
        mode: Mode = "auto",
        max_tokens: int,
        params: SamplingParams,
        count: int = 1,
        least_sure: float = 0.0,
        most: int = MOST,
        heals: bool = True,
    ) -> InfillPlan:
        """Completions of a place, each of which begins otherwise. `copies` are likely texts.

        `least_sure` is a probability below which an answer ends, see `Stopping`; `most` the tokens of a prompt, of
        which a large one takes long to read. Unless it `heals`, an answer begins at the cursor whatever stands there.
        """
        check_place(self._form, hole.suffix)
        asked = heals and least_sure == 0
        before, after = _with_line_feeds(hole.prefix + hole.middle), _with_line_feeds(hole.suffix)
        spellings = self._ready_spellings(None if asked and max_tokens else self._patience) if heals else None
        word = unfinished_word(before.rpartition("\n")[2]) if spellings else ""
        extent = find(hole.language, before, after, mode)
        lead = missing_blanks(extent) if heals else ""
        if lead:
            before, hole = before + lead, replace(hole, middle=hole.middle + lead)
            extent = find(hole.language, before, after, mode)
        place, context = hole.without(word), self._context
        prompt = assemble(
            self._encoder, self._form, context, place, others, max_tokens, word, min(most, self._form.longest)
        )
        if len(prompt.ids) >= context:
            raise ContextOverflow(f"a context of {context} tokens is too short to complete code in")
        first = Request(
            prompt.ids,
            prompt.max_tokens,
            params,
            self._ends,
            top_logprobs=0,
            documents=self._documents(prompt, copies),
        )
        taken = {*self._ends}  # tokens that no answer begins with; each adds its own
        requests = []
        spare = SPARE if asked and spellings and max_tokens else 0
        for number in range(count + spare):
            healing = Healing(spellings, word) if spellings and word else None
            differs = DistinctStart(healing, spellings.size, taken) if spellings and asked else healing
            drawn = params if asked and spellings else _varied(params, number)
            requests.append(replace(first, params=drawn, constraint=differs, stats=type(first.stats)()))
        sound, texts = Soundness.at(extent, before, after, hole.closed), (before, after, *(one.text for one in others))
        return InfillPlan(prompt, requests, self._form.stop_strings, extent, sound, texts, word, lead, least_sure)

    def _ready_spellings(self, patience: float | None) -> Spellings | None:
        if not wait([self._spellings], patience).done:
            return None
        return self._spellings.result()

    def _documents(self, prompt: InfillPrompt, copies: Sequence[str]) -> list[list[int]]:
        """Texts to copy drafts from, likeliest last; those in the prompt are copied from anyway."""
        left = [part.text for part in prompt.parts if part.left_out]
        documents: list[list[int]] = []
        room = COPIED
        for text in (*copies, *left):
            ids = self._encoder.text(_with_line_feeds(text[: room * 8]))[:room]
            if ids:
                documents.insert(0, ids)
                room -= len(ids)
        return documents


def _prepare_spellings(loaded: LoadedPair) -> Future[Spellings]:
    """Compute the spellings in a thread; a pair that is closed meanwhile waits for it."""
    thread = ThreadPoolExecutor(1, "spellings")
    made = thread.submit(Spellings, loaded.tokenizer, loaded.vocab_size)
    loaded.before_close(thread.shutdown)
    return made


def _varied(params: SamplingParams, number: int) -> SamplingParams:
    """How to draw the further choices where their first tokens cannot be kept apart."""
    if not number:
        return params
    seed = ((params.seed or 0) + number) % 2**63
    return replace(params, temperature=max(params.temperature, VARIED), seed=seed)


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n")
