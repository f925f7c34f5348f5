"""`localdflash bench infill`: quality of completions on a HumanEval-Infilling file.

A file has one JSON object per line: task_id, prompt, suffix, canonical_solution, test, entry_point. Completions are
greedy. The report has these shares of 1:

* exact match: completion and solution are equal, except for white space at either end;
* edit similarity: 1 - Levenshtein distance / length of the longer text, both stripped; the mean over the tasks;
* pass@1: prompt + completion + suffix + test + check(entry_point) runs to its end in a sandbox.

A task of whole lines (prompt and solution end with a line end) is requested as an editor does, with the cursor on an
empty line: the line end before the suffix belongs to the suffix.
"""

import gzip
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from localdflash.base.errors import ContextOverflow, ModelError
from localdflash.lab.bench import sandbox
from localdflash.lab.bench.pace import CountItems
from localdflash.lab.bench.spread import spread
from localdflash.server.client import Client

MAX_TOKENS = 128  # maximum tokens of a completion
MAX_LINE_BYTES = 1 << 20


class Task(msgspec.Struct, frozen=True):
    """HumanEval-Infilling task: one line of the file."""

    task_id: str
    prompt: str
    suffix: str
    canonical_solution: str
    test: str
    entry_point: str

    @property
    def lacks_whole_lines(self) -> bool:
        """Return whether the gap of the task is one or more whole lines."""
        return self.canonical_solution.endswith("\n") and (not self.prompt or self.prompt.endswith("\n"))

    def program(self, completion: str) -> str:
        """Return the program that tests a completion: it passes if it runs to its end without an error."""
        return f"{self.prompt}{completion}{self.suffix}\n{self.test}\ncheck({self.entry_point})\n"


@dataclass(frozen=True)
class InfillAnswer:
    """Completion with its times."""

    text: str
    tokens: int
    generation_ms: float  # reported by the daemon, without prefill
    total_ms: float  # duration of the request, measured here


class TestedAnswer(NamedTuple):
    """Task with its completion and the outcome of its tests."""

    task: Task
    answer: InfillAnswer
    verdict: sandbox.SandboxResult


def load(path: Path, limit: int | None = None) -> list[Task]:
    """Return the tasks of a .jsonl or .jsonl.gz, or `limit` of them, evenly spread; ModelError for a bad line."""
    tasks, number = list[Task](), 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise ModelError(f"{path}:{number}: line too long (expected at most {MAX_LINE_BYTES} bytes)")
                if line.strip():
                    tasks.append(msgspec.json.decode(line, type=Task))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}:{number}: not a HumanEval-Infilling task: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None
    if not tasks:
        raise ModelError(f"{path}: no tasks in the file")
    count = min(limit or len(tasks), len(tasks))
    return [tasks[i * len(tasks) // count] for i in range(count)]


def warning(path: Path) -> str:
    """Return a warning about running generated programs, with the protections missing on this machine."""
    weak = sandbox.weaknesses(sandbox.run("").restrictions)
    limits = f"but {' and '.join(weak)}" if weak else "without files, network or new processes"
    return f"The tests of {path} and the model's completions are executed in a sandbox, {limits}."


def run(client: Client, tasks: Sequence[Task], count: CountItems, result: dict[str, Any]) -> None:
    """Request a completion for every task, run its tests in the sandbox, and add the results to `result`.

    `result` is `interrupted` if the run ends before the last task; it stays empty before the first task is done.
    """
    done, status = list[TestedAnswer](), client.get("/ps?role=completion")
    engine = {key: status[key] for key in ("pair", "backend", "context") if key in status}
    try:
        for task in tasks:
            answer = _complete(client, task)
            done.append(TestedAnswer(task, answer, sandbox.run(task.program(answer.text))))
            count(len(done), len(tasks), f"{task.task_id}: {done[-1].verdict.outcome}")
    finally:
        if done:
            result |= {"interrupted": len(done) < len(tasks), "engine": engine} | _report(done)


def _report(done: Sequence[TestedAnswer]) -> dict[str, Any]:
    """Return the statistics over one or more tasks, and the results of each, as JSON values."""
    exact = [task.canonical_solution.strip() == answer.text.strip() for task, answer, _ in done]
    similarities = [similarity(answer.text, task.canonical_solution) for task, answer, _ in done]
    outcomes = Counter(verdict.outcome for _, _, verdict in done)
    tokens = sum(answer.tokens for _, answer, _ in done)
    generation = sum(answer.generation_ms for _, answer, _ in done) / 1e3
    return {
        "tasks": len(done),
        "exact_match": round(sum(exact) / len(done), 4),
        "edit_similarity": round(sum(similarities) / len(done), 4),
        "pass_at_1": round(outcomes["passed"] / len(done), 4),
        "outcomes": dict(outcomes),
        "tokens": tokens,
        "tokens_per_second": round(tokens / generation, 1) if generation else 0.0,
        "latency_ms": spread([answer.total_ms for _, answer, _ in done]),
        "sandbox": done[0].verdict.restrictions,
        "results": [
            {
                "task_id": task.task_id,
                "completion": answer.text,
                "outcome": verdict.outcome,
                "exact": is_exact,
                "edit_similarity": round(score, 4),
            }
            for (task, answer, verdict), is_exact, score in zip(done, exact, similarities, strict=True)
        ],
    }


def similarity(first: str, second: str) -> float:
    """Return 1 - Levenshtein distance / length of the longer text, both stripped; 1 for two empty texts."""
    first, second = first.strip(), second.strip()
    longer = max(len(first), len(second))
    return 1 - _distance(first, second) / longer if longer else 1.0


def _distance(first: str, second: str) -> int:
    """Return the Levenshtein distance."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def _complete(client: Client, task: Task) -> InfillAnswer:
    """Request one completion; a task that exceeds the context gets an empty answer."""
    end = "\n" if task.lacks_whole_lines else ""
    body = {
        "path": "task.py",
        "language": "python",
        "prefix": task.prompt,
        "suffix": end + task.suffix,
        "mode": "auto",
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": False,
    }
    began = time.perf_counter()
    try:
        answer = client.post("/complete", body)
    except ContextOverflow:
        return InfillAnswer("", 0, 0.0, (time.perf_counter() - began) * 1e3)
    total_ms = (time.perf_counter() - began) * 1e3
    choice, timings = answer["choices"][0], answer["timings"]
    text = choice["text"] if not end or choice["text"].endswith("\n") else choice["text"] + end
    return InfillAnswer(text, choice["tokens"], timings["predicted_ms"], total_ms)
