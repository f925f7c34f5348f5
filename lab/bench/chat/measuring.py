"""Measurements of the chat benchmark on a loaded pair, and their planned duration."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Pair
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.stats import Stats
from localdflash.lab.bench.bench_run import PromptRun, rotate, run_prompt
from localdflash.lab.bench.chat import curve, distribution
from localdflash.lab.bench.chat.chat_modes import DRAFTING, FORCED, LLAMA, PLAIN, ChatModes, Hosts
from localdflash.lab.bench.chat.chat_prompts import CATEGORIES, ChatPrompt
from localdflash.lab.bench.chat.report import SAMPLED, SAMPLED_PLAIN, PromptResult
from localdflash.lab.bench.chat.step_parts import measure_parts
from localdflash.lab.bench.pace import MIN_LIMIT_FOR_OTHERS, Watcher, describe_duration, limit_tokens, measure_pace
from localdflash.lab.bench.verify_table import SECONDS, verify_table
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.chat_request import render_chat
from localdflash.text.chat_template import TemplateMessage
from localdflash.text.grammar import Grammars

TEMPERATURE = 0.7
PLAIN_PARAMS = SamplingParams()
SLOW_EVERY = 2  # llama.cpp and forced drafting run every other prompt: they take longest
COLD_SECONDS, WARM_SECONDS, OTHER_SECONDS = 4.0, 0.4, 10.0  # estimates, for the progress bar


class Size(NamedTuple):
    """Extent of a run: the measurements besides the prompts, and the length of answers."""

    max_answer_tokens: int  # a prompt may have a smaller limit
    draws: int  # samples of two tokens for each prompt of the χ² test
    cost_prompts: int  # prompts on which step costs are measured
    verify_seconds: float  # duration of the verify table
    contexts: int  # number of context lengths, the shortest first
    documents: int  # documents per context length, each with four questions
    cold: int  # starts of the daemon
    warm: int  # questions to the running daemon
    has_others: bool  # whether other backends are compared too


FULL = Size(limit_tokens(None), 300, len(CATEGORIES), SECONDS, len(curve.LENGTHS), 8, 3, 20, True)


def size_of(limit: int | None) -> Size:
    """Return the extent of a run with `limit` prompts of each category: every part grows with it, up to `FULL`."""
    if limit is None:
        return FULL
    return Size(
        max_answer_tokens=limit_tokens(limit),
        draws=min(5 * limit, FULL.draws),
        cost_prompts=min(limit, FULL.cost_prompts),
        verify_seconds=min(limit / 2, FULL.verify_seconds),
        contexts=min(1 + limit, FULL.contexts),
        documents=min(limit, FULL.documents),
        cold=min(1 + limit // 10, FULL.cold),
        warm=min(2 * limit, FULL.warm),
        has_others=limit >= MIN_LIMIT_FOR_OTHERS,
    )


BenchStep = tuple[str, float, Callable[[float], None]]  # name, estimated seconds, function


class PromptRunSpec(NamedTuple):
    """Decoding mode and temperature of one run of a prompt; `every` 2 means every second prompt of a category."""

    name: str
    mode: str
    temperature: float = 0.0
    every: int = 1


def run_specs(modes: ChatModes) -> list[PromptRunSpec]:
    """Return the runs of a prompt: each mode greedily, then the baseline and drafting at `TEMPERATURE`."""
    greedy = [PromptRunSpec(mode, mode, every=SLOW_EVERY if mode in (FORCED, LLAMA) else 1) for mode in modes.pairs]
    sampled = [PromptRunSpec(SAMPLED_PLAIN, PLAIN, TEMPERATURE), PromptRunSpec(SAMPLED, DRAFTING, TEMPERATURE)]
    return [*greedy, *sampled]


class ChatBench:
    """One run of the benchmark over a loaded pair; `run_all` fills `results` and `measurements`."""

    def __init__(
        self,
        loaded: LoadedPair,
        modes: ChatModes,
        prompts: Sequence[ChatPrompt],
        repeats: int,
        size: Size,
        watcher: Watcher,
    ) -> None:
        self.loaded, self.modes, self.prompts = loaded, modes, prompts
        self.results: list[PromptResult] = []
        self.measurements: dict[str, Any] = {}
        self._repeats, self._size, self._watcher = repeats, size, watcher
        self._run_specs = run_specs(modes)
        self._grammars = Grammars(loaded.tokenizer, loaded.vocab_size)
        self._ids = {
            prompt.id: render_chat(loaded, [TemplateMessage("user", prompt.question)]).encode() for prompt in prompts
        }

    def run_all(self) -> None:
        """Time each mode, report the planned duration, and run everything."""
        first, ends = self._ids[self.prompts[0].id], self.loaded.tokenizer.ends
        by_mode = {mode: measure_pace(pair, first, ends) for mode, pair in self.modes.pairs.items()}
        self._pace = {spec.name: by_mode[spec.mode] for spec in self._run_specs}
        steps: list[BenchStep] = [("prompts", self._prompt_seconds(), self._run_prompts)]
        if hosts := self.modes.hosts:
            steps += [
                ("distribution", self._distribution_seconds(), partial(self._check_distribution, hosts)),
                ("costs", self._cost_seconds(), partial(self._measure_costs, hosts)),
                ("contexts", self._context_seconds(), partial(self._measure_contexts, hosts)),
            ]
        after = self._size.cold * COLD_SECONDS + self._size.warm * WARM_SECONDS
        after += OTHER_SECONDS if self._size.has_others else 0.0
        seconds = sum(seconds for _, seconds, _ in steps) + after
        others = ["other backends"] if self._size.has_others else []
        then = ", ".join([*(name for name, _, _ in steps[1:]), *others, "the daemon"])
        self._watcher.plan(
            seconds,
            f"{len(self.prompts)} prompts, {len(self._run_specs)} modes interleaved; then {then}."
            f" {describe_duration(seconds)} at most; Ctrl-C ends the run and prints the results so far.",
        )
        for _, seconds, step in steps:
            step(seconds)

    def answer(self, pair: Pair, prompt: ChatPrompt, params: SamplingParams, limit: int = 0) -> PromptRun:
        """Return one answer from a cold cache, as JSON if the prompt has a schema."""
        constraint = self._grammars.json_schema(prompt.schema) if prompt.schema else None
        ends, max_tokens = self.loaded.tokenizer.ends, min(limit or prompt.max_tokens, self._size.max_answer_tokens)
        return run_prompt(pair, self._ids[prompt.id], ends, max_tokens, params, constraint)

    def _specs_of(self, number: int) -> list[PromptRunSpec]:
        """Return the runs of prompt `number`; in a short run, llama.cpp answers only the first category."""
        round_number, category = divmod(number, len(CATEGORIES))
        skipped = () if self._size.has_others or category == 0 else (LLAMA,)
        return [spec for spec in self._run_specs if round_number % spec.every == 0 and spec.mode not in skipped]

    def _seconds(self, spec: PromptRunSpec, prompt: ChatPrompt) -> float:
        return self._pace[spec.name].seconds(
            len(self._ids[prompt.id]), min(prompt.max_tokens, self._size.max_answer_tokens)
        )

    def _prompt_seconds(self) -> float:
        numbered = enumerate(self.prompts)
        times = (self._seconds(spec, prompt) for number, prompt in numbered for spec in self._specs_of(number))
        return sum(times) * self._repeats

    def _run_prompts(self, _: float) -> None:
        for number, prompt in enumerate(self.prompts):
            result = PromptResult(prompt.category)
            for repeat in range(self._repeats):
                for spec in rotate(self._specs_of(number), number + repeat):
                    params = SamplingParams(spec.temperature, seed=number)
                    result.add(spec.name, self.answer(self.modes.pairs[spec.mode], prompt, params))
                    self._watcher.done(self._seconds(spec, prompt), prompt.id)
            self.results.append(result)

    def _first_of_each(self) -> list[ChatPrompt]:
        """Return the first prompt of each category whose answers follow no JSON schema."""
        return [prompt for prompt in self.prompts[: len(CATEGORIES)] if not prompt.schema]

    def _distribution_seconds(self) -> float:
        step = self._pace[FORCED if self.modes.has_model else PLAIN].answer_token_ms
        return len(self._first_of_each()) * self._size.draws * 3 * step / 1e3

    def _check_distribution(self, hosts: Hosts, seconds: float) -> None:
        ids = [self._ids[prompt.id] for prompt in self._first_of_each()]

        def on_progress() -> None:
            self._watcher.done(seconds / len(ids), "distribution")

        self.measurements["distribution"] = distribution.check(hosts, ids, TEMPERATURE, self._size.draws, on_progress)

    def _cost_seconds(self) -> float:
        prompts = self._first_of_each()[: self._size.cost_prompts]
        greedy = [spec for spec in self._run_specs if not spec.temperature]
        answers = sum(self._seconds(spec, prompt) for spec in greedy for prompt in prompts)
        return answers + self._size.verify_seconds + 1.0  # 1 s for the widest batches of the table

    def _measure_costs(self, hosts: Hosts, seconds: float) -> None:
        composed = {mode: pair for mode, pair in self.modes.pairs.items() if isinstance(pair, HostPair)}
        costs = {mode: measure_parts(pair, partial(self._answer_cost_prompts, pair)) for mode, pair in composed.items()}
        for pair in hosts:
            pair.forget()
        self.measurements["step_ms"] = costs
        self.measurements["verify"] = verify_table(hosts.drafting.target, hosts.plain.target, self._size.verify_seconds)
        self._watcher.done(seconds, "costs")

    def _answer_cost_prompts(self, pair: HostPair) -> Stats:
        sums = Stats()
        for prompt in self._first_of_each()[: self._size.cost_prompts]:
            sums.merge(self.answer(pair, prompt, PLAIN_PARAMS).stats)
        return sums

    def _lengths(self) -> list[int]:
        return curve.lengths(self.loaded.context)[: self._size.contexts]

    def _context_seconds(self) -> float:
        lengths = self._lengths()
        prompt_tokens = sum(lengths) * self._size.documents
        read = (self._pace[PLAIN].prompt_token_ms + self._pace[DRAFTING].prompt_token_ms) * prompt_tokens
        modes = [mode for mode in (PLAIN, DRAFTING, FORCED) if mode in self._pace]
        write = (
            sum(self._pace[mode].answer_token_ms for mode in modes)
            * len(lengths)
            * self._size.documents
            * len(curve.QUESTIONS)
            * curve.ANSWER_TOKENS
        )
        return 2 * (read + write) / 1e3  # doubled for the attention to long contexts

    def _measure_contexts(self, hosts: Hosts, seconds: float) -> None:
        lengths = sum(self._lengths())

        def on_progress(length: int) -> None:
            self._watcher.done(seconds * length / lengths, f"context {length}")

        self.measurements["context"] = curve.measure(
            self.loaded, hosts, self._lengths(), self._size.documents, on_progress
        )
