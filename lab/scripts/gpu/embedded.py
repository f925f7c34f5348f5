"""Phase `embedded`: the embedded pair on the prompts of `bench`, given as token ids.

`python lab/scripts/gpu/embedded.py FILE` writes the ids, since the GPU machine may lack the tokenizer's library.
Each prompt runs from a cold cache in every mode, in alternating order; the fastest repeat counts.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localdflash.engine.generate import Request, generate

if TYPE_CHECKING:
    from localdflash.backends.cuda.cuda_pair import CudaPair
    from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

PROMPTS = Path(__file__).with_name("embedded_prompts.json")
EMBEDDED = Path(__file__).parents[3] / "localdflash" / "models" / "embedded"
REPEATS = 2


@dataclass
class EmbeddedRun:
    """Run of one prompt in one mode: tokens, decoding time and steps."""

    ids: list[int]
    ms: float
    steps: int


def run(setup: "Setup", report: "BenchReport") -> None:
    """Report for every category tokens per second, tokens per step, and whether all modes give the same tokens."""
    from localdflash.backends.cuda.assembly import load_pair
    from localdflash.models.load_options import Options

    pair = load_pair(EMBEDDED / "target.gguf", EMBEDDED / "drafter.gguf", setup.device, Options(), setup.ops)
    pairs = {"plain": pair.with_mode("plain"), "drafting": pair, "dflash alone": pair.with_mode("draft")}
    prompts = json.loads(PROMPTS.read_text())
    categories = sorted({prompt["category"] for prompt in prompts})
    if setup.tiny:
        prompts = [next(p for p in prompts if p["category"] == category) for category in categories]
        prompts = [prompt | {"ids": prompt["ids"][-24:], "max_tokens": 4} for prompt in prompts]
    runs: dict[str, dict[str, list[EmbeddedRun]]] = {category: {name: [] for name in pairs} for category in categories}
    identical = dict.fromkeys(categories, 0)
    for number, prompt in enumerate(prompts):
        found = _run_modes(pairs, prompt, reverse=number % 2 == 1)
        identical[prompt["category"]] += len({tuple(run.ids) for repeats in found.values() for run in repeats}) == 1
        for name, repeats in found.items():
            runs[prompt["category"]][name].append(min(repeats, key=lambda run: run.ms))
        if number % 20 == 19 or number + 1 == len(prompts):
            report.put(categories={name: _summary(runs[name], identical[name]) for name in categories})
    together = {name: [run for category in runs.values() for run in category[name]] for name in pairs}
    report.put(overall=_summary(together, sum(identical.values())))
    report.put(sampled_identical=_sampled(pairs, prompts[:: 1 if setup.tiny else 11]))


def _run_modes(pairs: "dict[str, CudaPair]", prompt: dict[str, Any], reverse: bool) -> dict[str, list[EmbeddedRun]]:
    """Return all repeats of a prompt in each mode."""
    found: dict[str, list[EmbeddedRun]] = {name: [] for name in pairs}
    for _ in range(REPEATS):
        for name in reversed(pairs) if reverse else pairs:
            found[name].append(_run(pairs[name], prompt))
    return found


def _run(pair: "CudaPair", prompt: dict[str, Any], **sampling: Any) -> EmbeddedRun:
    from localdflash.engine.sampling_params import SamplingParams

    pair.forget()
    request = Request(prompt["ids"], prompt["max_tokens"], SamplingParams(**sampling), frozenset(prompt["ends"]))
    ids = [token for step in generate(pair, request) for token in step.tokens]
    return EmbeddedRun(ids, request.stats.total_ms, request.stats.steps)


def _summary(modes: dict[str, list[EmbeddedRun]], identical: int) -> dict[str, Any]:
    """Return the rates of some prompts by mode, and their ratios to decoding without drafts; empty without runs."""
    if not modes["plain"]:
        return {}
    answer: dict[str, Any] = {"prompts": len(modes["plain"]), "identical": f"{identical}/{len(modes['plain'])}"}
    for name, runs in modes.items():
        tokens, ms = sum(len(run.ids) for run in runs), sum(run.ms for run in runs)
        tau = tokens / sum(run.steps for run in runs)
        answer[name] = {"tok_s": round(tokens / ms * 1e3, 1), "tau": round(tau, 3), "tokens": tokens}
    for name in list(modes)[1:]:
        answer[name]["speedup"] = round(answer[name]["tok_s"] / answer["plain"]["tok_s"], 3)
    return answer


def _sampled(pairs: "dict[str, CudaPair]", prompts: Sequence[dict[str, Any]]) -> str:
    """Return "SAME/ALL": of ALL prompts, SAME get the same tokens in every mode, sampled with a seed."""
    settings = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": 5}
    same = 0
    for prompt in prompts:
        same += len({tuple(_run(pair, prompt, **settings).ids) for pair in pairs.values()}) == 1
    return f"{same}/{len(prompts)}"


def write_prompts(file: Path) -> None:
    """Write the prompts of `bench` as token ids; needs the tokenizer, and llama.cpp."""
    from localdflash.lab.bench.bench_run import prompt_ids
    from localdflash.lab.bench.prompt_set import load
    from localdflash.loading.load_pair import LoadedPair
    from localdflash.models.load_options import Options

    with LoadedPair(Options(pair="embedded", backend="llama.cpp", draft=False)) as loaded:
        found = []
        for prompt in load():
            ids, ends = prompt_ids(loaded, prompt)
            found.append(
                {"id": prompt.id, "category": prompt.category, "ids": ids, "ends": sorted(ends),
                 "max_tokens": prompt.max_tokens}
            )  # fmt: skip
    lines = ",\n".join(json.dumps(prompt, separators=(",", ":")) for prompt in found)
    file.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the prompts of `bench` as token ids.")
    parser.add_argument("file", type=Path, help=f"for example {PROMPTS.name}, next to this script")
    write_prompts(parser.parse_args().file)
