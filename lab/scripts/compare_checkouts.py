"""Compare the speed of two checkouts: `python lab/scripts/compare_checkouts.py BEFORE AFTER [--limit N]`.

Each checkout is installed in its own .venv. Both answer the chat benchmark's questions greedily on the CPU engine, one
question at a time, and take turns in answering first. The script prints the median ratio of the time per token, and for
how many questions both drafted answers equal the answer without drafting.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

PAIR, THREADS = "smollm2-135m", 2


def answer_questions(limit: int) -> None:
    """Load the pair, then answer each stdin line `[question number, draft]` with `[ms per token, tokens]` on stdout."""
    from localdflash.engine.generate import Request, generate
    from localdflash.engine.sampling_params import SamplingParams
    from localdflash.lab.bench.chat import chat_prompts
    from localdflash.loading.load_pair import LoadedPair
    from localdflash.models.load_options import Options

    prompts = chat_prompts.load(limit)
    drafting, baseline = (LoadedPair(Options(PAIR, "cpu", THREADS, draft=draft)) for draft in (True, False))
    print(json.dumps({"count": len(prompts)}), flush=True)
    for line in sys.stdin:
        number, draft = json.loads(line)
        loaded, prompt = drafting if draft else baseline, prompts[number]
        ids = loaded.tokenizer.encode(f"user\n{prompt.question}\nassistant\n")
        loaded.pair.forget()
        request = Request(ids, prompt.max_tokens, SamplingParams(), ends=loaded.tokenizer.ends)
        tokens = [token for step in generate(loaded.pair, request) for token in step.tokens]
        print(json.dumps([request.stats.total_ms / max(1, len(tokens)), tokens]), flush=True)


class Checkout:
    """Worker process of one checkout; `facts` is its first message, with the `count` of questions."""

    def __init__(self, folder: Path, limit: int) -> None:
        command = [str(folder / ".venv/bin/python"), "-P", str(Path(__file__).resolve()), "--worker", str(limit)]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.facts: dict[str, Any] = self._read()

    def answer(self, number: int, *, draft: bool) -> tuple[float, list[int]]:
        """Return milliseconds per token and the tokens of an answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps([number, draft]) + "\n")
        self._process.stdin.flush()
        milliseconds, tokens = self._read()
        return milliseconds, tokens

    def _read(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())


def main() -> None:
    """Compare two checkouts, or with --worker answer the questions for one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, help="before, after")
    parser.add_argument("--limit", type=int, default=40, help="questions of each of the seven kinds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        answer_questions(given.worker)
        return
    from localdflash.lab import result_file  # not in the worker: an older checkout may lack it

    before, after = (Checkout(folder, given.limit) for folder in given.checkouts)
    ratios, identical = [], 0
    for number in range(before.facts["count"]):
        order = (before, after) if number % 2 else (after, before)
        answers = {checkout: checkout.answer(number, draft=True) for checkout in order}
        _, undrafted = after.answer(number, draft=False)
        ratios.append(answers[after][0] / answers[before][0])
        identical += answers[before][1] == answers[after][1] == undrafted
    result = {
        "before": result_file.commit(given.checkouts[0]),
        "after": result_file.commit(given.checkouts[1]),
        "pair": PAIR,
        "threads": THREADS,
        "time_after_over_before": round(statistics.median(ratios), 4),
        "identical": f"{identical}/{len(ratios)}",
    }
    print(json.dumps(result, indent=1))
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
