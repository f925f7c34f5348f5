"""How many tokens are committed in a step by drafts of likeliest tokens, and by drafts that are drawn.

`PYTHONPATH=. python -P lab/scripts/sampled_drafts.py --pair smollm2-135m --json FILE`. The same prompts by both rules,
each draft of the pair's drafter verified whole, at one temperature. Speed is another matter: see `localdflash bench`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, get_args

from localdflash.base.errors import UsageError
from localdflash.base.machine.hardware import commit
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.stats import Stats
from localdflash.lab.bench.bench_run import prompt_ids, run_prompt
from localdflash.lab.bench.decoding_modes import Always
from localdflash.lab.bench.prompt_set import load
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import PROPOSALS, Runner
from localdflash.models.load_options import Options


def measure(loaded: LoadedPair, count: int, tokens: int, params: SamplingParams) -> dict[str, Any]:
    """Sums by rule over so many prompts, the chat's where the pair fills in no code."""
    if not (loaded.host and loaded.host.can_draw):
        raise UsageError(f"the pair has no drafter that draws on {loaded.backend}")
    drafters = [drafter for drafter in loaded.host.drafters if drafter.is_model]
    totals = {rule: Stats() for rule in PROPOSALS}
    prompts = [prompt for prompt in load(None) if prompt.question][:count]
    for number, prompt in enumerate(prompts):
        ids, ends = prompt_ids(loaded, prompt)
        for rule, total in totals.items():
            pair = HostPair(loaded.host.target, drafters, Always())
            pair.draws = rule == "sampled"
            total.merge(run_prompt(pair, ids, ends, tokens, params).stats)
        print(f"{number + 1}/{len(prompts)} {prompt.id}", file=sys.stderr)
    return {rule: _report(total) for rule, total in totals.items()} | {"prompts": len(prompts)}


def _report(total: Stats) -> dict[str, Any]:
    return {
        "tokens": total.tokens,
        "steps": total.steps,
        "tau": round(total.tau, 3),
        "accept_by_slot": total.acceptance(),
    }


def main() -> None:
    """Print the result, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", default="smollm2-135m")
    parser.add_argument("--backend", choices=get_args(Runner), default="torch")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    params = SamplingParams(given.temperature, top_p=given.top_p, seed=1)
    options = Options(given.pair, given.backend, threads=given.threads, rows="fast")
    with LoadedPair(options) as loaded:
        found = measure(loaded, given.prompts, given.tokens, params)
    about = {"pair": given.pair, "backend": given.backend, "temperature": given.temperature, "top_p": given.top_p}
    text = json.dumps(about | {"commit": commit()} | found, indent=1)
    if given.json:
        given.json.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
