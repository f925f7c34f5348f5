"""Value of a personal drafter: held-out questions with the drafter before and the one after, interleaved.

`PYTHONPATH=. python -P lab/scripts/personal.py --before smollm2-135m --after FOLDER/target.gguf --own
FOLDER/prompts.jsonl --others OTHER/prompts.jsonl --json FILE`. The files are those that `train drafter` makes.
`forced` verifies every whole block: its tokens per verify step are what the drafter is worth.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from localdflash.engine.pair import Pair
from localdflash.lab import result_file
from localdflash.lab.bench.bench_run import PromptRun, rate, rotated, run_prompt
from localdflash.lab.bench.chat.chat_modes import DRAFTING, FORCED, PLAIN, opened
from localdflash.lab.train import training_prompts
from localdflash.lab.train.batched_answers import LONGEST_PROMPT, PromptEncoder
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options

TOKENS = 96  # of an answer
BEFORE, AFTER = "before", "after"


def asked(path: Path, count: int, asker: PromptEncoder) -> list[list[int]]:
    """The ids of the first held-out questions of a file."""
    held_out = (asker.encode(prompt) for prompt in training_prompts.read(path) if prompt.held_out)
    return [ids for ids in held_out if len(ids) <= LONGEST_PROMPT][:count]


def compared(pairs: dict[str, Pair], questions: Sequence[list[int]], ends: frozenset[int]) -> dict[str, Any]:
    """Every question in every way, another way first at each."""
    runs: dict[str, list[PromptRun]] = {name: [] for name in pairs}
    for number, ids in enumerate(questions):
        for name, pair in rotated([*pairs.items()], number):
            runs[name].append(run_prompt(pair, ids, ends, TOKENS))
        print(f"{number + 1}/{len(questions)}", file=sys.stderr)
    rates = {name: rate(of_way) for name, of_way in runs.items()}
    same = sum(len({tuple(run.ids) for run in one}) == 1 for one in zip(*runs.values(), strict=True))
    found: dict[str, Any] = {"questions": len(questions), "identical": f"{same}/{len(questions)}"}
    for name, of_way in runs.items():
        steps, tokens = (sum(getattr(run.stats, what) for run in of_way) for what in ("steps", "tokens"))
        found[name] = {
            "tok_s": round(rates[name], 1),
            "over_plain": round(rates[name] / rates[PLAIN], 3),
            "tau": round(tokens / steps, 3),
        }
    return found


def main() -> None:
    """Measure both drafters on both files, one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in (BEFORE, AFTER):
        parser.add_argument(f"--{name}", required=True)
    for name in ("own", "others", "json"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    pairs: dict[str, Pair] = {}
    with ExitStack() as stack:
        for name in (BEFORE, AFTER):
            options = Options(getattr(given, name), backend="cpu", threads=given.threads)
            loaded = stack.enter_context(LoadedPair(options))
            ways = stack.enter_context(opened(loaded, options))
            pairs.setdefault(PLAIN, ways.pairs[PLAIN])
            pairs |= {f"{way}, {name}": ways.pairs[way] for way in (DRAFTING, FORCED)}
            asker, ends = PromptEncoder(loaded.files.target), loaded.tokenizer.ends
        found = {
            name: compared(pairs, asked(getattr(given, name), given.count, asker), ends) for name in ("own", "others")
        }
    result_file.write(given.json, {"threads": given.threads} | found)


if __name__ == "__main__":
    main()
