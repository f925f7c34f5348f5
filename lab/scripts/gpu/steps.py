"""Phase `steps`: times of steps and prompts, and memory, of a Qwen3-8B-shaped pair with random weights.

A timed step begins with a random KV cache and a reset state, so that it runs at exactly the named context.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.cuda_pair import CudaPair, StepModes
from localdflash.backends.cuda.cuda_sizes import CudaSizes
from localdflash.backends.cuda.ops import Ops
from localdflash.backends.cuda.runner import Runner
from localdflash.backends.cuda.stepper import StepMode, Stepper
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTER, FIELDS, STEP
from localdflash.lab.scripts import synthetic
from localdflash.lab.scripts.gpu.gpu_timing import milliseconds
from localdflash.lab.scripts.gpu.setup import BenchReport, Setup, guarded
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import total
from localdflash.models.weights.ggml_types import GGMLType

ROWS = 16
DRAFTER_TYPES = (GGMLType.Q4_K, GGMLType.Q8_0)
MODES: tuple[StepMode, ...] = ("plain", "lookup", "draft", "block")
PROMPTS = (100, 513, 1000, 1025, 4097, 16385)  # tokens
# Tokens per step -> accepted tokens of consecutive steps.
PATTERNS = {3.0: (0, 1, 2, 5), 5.0: (1, 2, 4, 9), 6.5: (2, 3, 6, 11)}


def models(setup: Setup) -> tuple[Path, dict[str, Path]]:
    """Return the target and the drafters by type; write missing files."""
    tiny, folder = setup.tiny, setup.folder
    folder.mkdir(parents=True, exist_ok=True)
    name = "tiny" if tiny else "qwen3-8b"
    target = folder / f"synthetic-{name}.gguf"
    if not target.is_file():
        synthetic.write_target(target, synthetic.TINY if tiny else synthetic.QWEN3_8B, target.stem)
    drafters = {}
    for kind in DRAFTER_TYPES:
        path = drafters[kind.name] = folder / f"synthetic-{name}-dflash-{kind.name.lower()}.gguf"
        if not path.is_file():
            config = synthetic.TINY_DRAFTER if tiny else synthetic.QWEN3_8B_DRAFTER
            synthetic.write_drafter(path, config, kind, path.stem)
    return target, drafters


def run(setup: Setup, report: BenchReport) -> None:
    """Load a pair with each drafter in turn; report weights, step times, memory, tokens per second and prompts."""
    began = time.perf_counter()
    target, drafters = models(setup)
    report.put(write_seconds=round(time.perf_counter() - began, 1), target_mb=target.stat().st_size >> 20)
    for kind, drafter in drafters.items():
        found: dict[str, Any] = {}
        report.put(**{kind: found})
        save = partial(report.put, **{kind: found})
        base = _allocated(setup)
        began = time.perf_counter()
        pair = load_pair(target, drafter, setup.device, Options(context=1024 if setup.tiny else 20480), setup.ops)
        found["load_seconds"] = round(time.perf_counter() - began, 1)
        found["weights"] = weight_bytes(pair.stepper)
        for context in (64, 512) if setup.tiny else (1024, 16384):
            found[f"step_ms_{context}"] = guarded(partial(step_times, pair.stepper, context))
            save()
        found["memory"] = guarded(partial(_memory, setup, pair, target, drafter, base))
        save()
        found["acceptance"] = guarded(partial(acceptance, pair, setup.tiny))
        save()
        found["prompts"] = guarded(partial(prompt_rates, pair, (40, 100) if setup.tiny else PROMPTS))
        save()
        for mode in ("plain", "block"):
            found[f"alone_us_{mode}"] = guarded(partial(alone, pair.stepper, mode, 64 if setup.tiny else 1024))
            save()
        del pair
        gc.collect()  # frees the memory for the next pair


def weight_bytes(stepper: Stepper) -> dict[str, int]:
    """Return the bytes of weights that a verify step and a draft read, without the embedding."""

    def layers(parts: Sequence[Any]) -> int:
        matrices = [p for part in parts for p in (*(h.planes for h in part.qkv), part.output, *vars(part.mlp).values())]
        return sum(planes.nbytes for planes in matrices)

    target, drafter = stepper.target, stepper.drafter
    found = {"verify": layers(target.layers) + target.head.nbytes}
    if drafter:
        w = drafter.weights
        found["draft"] = layers(w.layers) + w.head.nbytes + w.fuse.nbytes + sum(h.planes.nbytes for h in w.context)
    return found


class RandomContext:
    """Context of random tokens: fills a stepper's KV caches and documents once, and resets its state at each call."""

    def __init__(self, stepper: Stepper, context: int) -> None:
        self._stepper, device = stepper, stepper.device
        state = torch.zeros(FIELDS, dtype=torch.int32)
        state[CONTEXT] = state[DRAFTER] = context
        self._state = state.to(device)
        vocabulary = stepper.target.config.vocab_size
        self._tokens = torch.randint(vocabulary, stepper.tokens.shape, device=device).to(torch.int32)
        stepper.cache.k.normal_()
        stepper.cache.v.normal_()
        if stepper.drafter:
            stepper.drafter.cache.k.normal_()
            stepper.drafter.cache.v.normal_()
            stepper.drafter.ring.ring.normal_(std=1 / 16)
        documents = torch.randint(vocabulary, stepper.documents.shape, device=device).to(torch.int32)
        ending = min(context + 1, 24)
        documents[: ending + ROWS] = self._tokens[context + 1 - ending : context + 1 + ROWS]  # lookup finds a match
        stepper.documents.copy_(documents)
        stepper.documents_length.fill_(len(documents))

    def __call__(self) -> None:
        """Reset the stepper's state and tokens."""
        self._stepper.state.copy_(self._state)
        self._stepper.tokens.copy_(self._tokens)


def step_times(stepper: Stepper, context: int) -> dict[str, Any]:
    """Return milliseconds of a step by mode, ratios to a step without drafting, and what each step drafted."""
    runner, reset = Runner(stepper), RandomContext(stepper, context)
    ms, drafted = {}, {}
    for mode in MODES:
        ms[mode] = milliseconds(partial(runner.step, mode, True, context), stepper.device, reset)
        record = stepper.records[int(stepper.state[STEP] - 1) % len(stepper.records)].tolist()
        drafted[mode] = {"drafted": record[1], "by": record[2], "status": record[4]}
    ratios = {f"{mode}_in_plain": round(ms[mode] / ms["plain"], 3) for mode in MODES[1:]}
    return {mode: round(value, 4) for mode, value in ms.items()} | ratios | {"records": drafted}


def alone(stepper: Stepper, mode: StepMode, context: int) -> dict[str, Any]:
    """Return for each operation the number of its launches in a step, and their time without other operations."""
    original, reset = stepper.ops, RandomContext(stepper, context)
    names = [field.name for field in fields(Ops)]
    counts = dict.fromkeys(names, 0)

    def counting(name: str, *_args: Any, **_options: Any) -> None:
        counts[name] += 1

    _use(stepper, Ops(**{name: partial(counting, name) for name in names}))
    stepper.step(mode, True, 8)
    nothing = Ops(**dict.fromkeys(names, _nothing))
    found: dict[str, Any] = {}
    for name in (name for name in names if counts[name]):
        _use(stepper, replace(nothing, **{name: getattr(original, name)}))
        ms = milliseconds(partial(Runner(stepper).step, mode, True, context), stepper.device, reset)
        found[name] = {"us": round(ms * 1e3, 1), "launches": counts[name]}
    _use(stepper, nothing)
    ms = milliseconds(partial(Runner(stepper).step, mode, True, context), stepper.device, reset)
    found["nothing"] = {"us": round(ms * 1e3, 1), "launches": 0}  # the graph's launch and the copy of the record
    _use(stepper, original)
    return found


def _nothing(*_args: Any, **_options: Any) -> None:
    """Do nothing, in place of an operation."""


def _use(stepper: Stepper, ops: Ops) -> None:
    """Replace the operations of a stepper and its stacks, except in graphs that are already captured."""
    stepper.ops = stepper.stack.ops = ops
    if stepper.drafter:
        stepper.drafter.stack.ops = ops


def acceptance(pair: CudaPair, tiny: bool) -> dict[str, Any]:
    """Measure tokens per second through `CudaPair.step`, without drafts and with the acceptance of PATTERNS."""
    stepper, original = pair.stepper, pair.stepper.ops
    prompt = torch.randint(stepper.target.config.vocab_size, (65 if tiny else 1025,)).tolist()
    count = 40 if tiny else 512
    found: dict[str, Any] = {"plain": _tokens_per_second(pair.with_mode("plain"), prompt, count // 2)}
    for tau, pattern in PATTERNS.items():
        _use(stepper, replace(original, accept=agreeing(original.accept, pattern, stepper.device)))
        patched = CudaPair(stepper, Runner(stepper), StepModes({"draft": 1.0}))
        found[f"tau {tau:g}"] = _tokens_per_second(patched, prompt, count)
    _use(stepper, original)
    pair.forget()
    for name, answer in found.items():
        if name != "plain":
            answer["speedup"] = round(answer["tok_s"] / found["plain"]["tok_s"], 3)
    return found


def agreeing(accept: Callable[..., None], pattern: Sequence[int], device: torch.device) -> Callable[..., None]:
    """Return an `accept` that accepts pattern[STEP % len(pattern)] draft tokens in a step."""
    accepted, rows = torch.tensor(pattern, device=device), torch.arange(ROWS, device=device)

    def patched(draft: Tensor, choice: Tensor, tokens: Tensor, state: Tensor, *rest: Any, **options: Any) -> None:
        count = accepted[state[STEP : STEP + 1].long() % len(pattern)]
        following = draft.roll(-1)
        choice.copy_(torch.where(rows < count, following, following ^ 1))
        accept(draft, choice, tokens, state, *rest, **options)

    return patched


def _tokens_per_second(pair: CudaPair, prompt: Sequence[int], count: int) -> dict[str, Any]:
    """Measure the decoding of `count` tokens after a prompt, after a short run that captures the graphs."""
    for tokens in (ROWS * 2, count):
        pair.forget()
        began = time.perf_counter()
        pair.prefill(prompt)
        pair.runner.synchronize()
        prefill, sampler, done, steps = time.perf_counter() - began, Sampler(SamplingParams()), 0, 0
        began = time.perf_counter()
        while done < tokens:
            done += len(pair.step(sampler, tokens - done).tokens)
            steps += 1
        seconds = time.perf_counter() - began
    return {
        "tok_s": round(done / seconds, 1),
        "tau": round(done / steps, 3),
        "step_ms": round(seconds / steps * 1e3, 4),
        "prefill_tok_s": round(len(prompt) / prefill, 1),
    }


def prompt_rates(pair: CudaPair, lengths: Sequence[int]) -> dict[str, Any]:
    """Measure prompts of random tokens that are not cached: median milliseconds of three, and tokens per second."""
    found = {}
    for length in lengths:
        prompt, times = torch.randint(pair.stepper.target.config.vocab_size, (length,)).tolist(), []
        for _ in range(4):  # the first captures the graphs
            pair.forget()
            pair.runner.synchronize()
            began = time.perf_counter()
            pair.prefill(prompt)
            pair.runner.synchronize()
            times.append(time.perf_counter() - began)
        seconds = median(times[1:])
        found[str(length)] = {"ms": round(seconds * 1e3, 2), "tok_s": round(length / seconds, 1)}
    return found


def _allocated(setup: Setup) -> int:
    """Return the bytes of tensors now (0 on a CPU), and reset the peak."""
    if setup.device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _memory(setup: Setup, pair: CudaPair, target: Path, drafter: Path, base: int) -> dict[str, Any]:
    """Return the predicted bytes of the pair; on a GPU also the peak since `_allocated` returned `base`."""
    sizes = CudaSizes(target, drafter)
    predicted = total(sizes.parts(pair.stepper.context, sizes.drafters[0]))
    if setup.device.type != "cuda":
        return {"predicted": predicted}
    peak, held = torch.cuda.max_memory_allocated() - base, torch.cuda.memory_allocated() - base
    reserved = torch.cuda.memory_reserved()
    ratio = round(peak / predicted, 4)
    return {"predicted": predicted, "peak": peak, "held": held, "reserved": reserved, "peak_in_predicted": ratio}
