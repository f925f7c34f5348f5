"""localdflash against llama.cpp on the same two GGUF files, threads and prompts, greedy, interleaved.

`python lab/scripts/peers/compare_peers.py --folder DIR --json FILE`; llama-server and llama-bench are built into DIR
first. Two parts: our loop without drafts against `llama-bench`; our daemon against `llama-server`, without drafting and
with `--spec-type draft-dflash` at each draft length. Times are decoding times as each program reports them.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.lab import result_file
from localdflash.lab.bench.bench_run import rotate
from localdflash.lab.scripts.peers.peer_llama_server import LOOKUPS, LlamaServer, build, dflash
from localdflash.lab.scripts.peers.sides import DaemonSide, PeerQuestion, ServerSide, Side, questions, report
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.shapes.dflash_file import config_of_file

PLAIN_TOKENS = 128
WARM_TOKENS = 16  # length of an untimed first answer, since first drafts are slow
OURS = "localdflash"


def compare_plain(binary: Path, options: Options, rounds: int) -> dict[str, Any]:
    """Return tokens per second without drafting, from an empty context: our loop and `llama-bench`, interleaved."""
    with LoadedPair(replace(options, draft=False)) as loaded:
        target, options = loaded.files.target, replace(options, backend=loaded.backend)
    command = [str(binary), "-m", str(target), "-t", str(options.threads), "-p", "0", "-n", str(PLAIN_TOKENS)]
    command += ["-r", "3", "-fa", "0,1", "-o", "json"]
    ours: list[float] = []
    theirs: list[list[float]] = []
    for _ in range(rounds):
        ours.append(_own_plain(options))
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        theirs.append([float(row["avg_ts"]) for row in answer])
    without, with_flash = (median(rates) for rates in zip(*theirs, strict=True))
    return {
        "backend": options.backend,
        "ours_tok_s": round(median(ours), 1),
        "llama_bench_tok_s": round(without, 1),
        "llama_bench_flash_tok_s": round(with_flash, 1),
        "ratio": round(median(a / max(b) for a, b in zip(ours, theirs, strict=True)), 3),
        "llama_bench": " ".join(["llama-bench", *command[3:]]),
    }


def _own_plain(options: Options) -> float:
    with LoadedPair(replace(options, draft=False)) as loaded:
        assert loaded.host_pair
        model, token, rates = loaded.host_pair.target, 1, []
        for _ in range(4):
            model.crop(0)
            began = time.perf_counter()
            for _ in range(PLAIN_TOKENS):
                token = int(model.verify(token, EMPTY_DRAFT).logits[0].argmax())
                model.keep(1)
            rates.append(PLAIN_TOKENS / (time.perf_counter() - began))
    return sum(rates[1:]) / 3  # the first warms up, as llama-bench does


def compare_drafting(server: Path, options: Options, suite: str, lengths: list[int], limit: int | None) -> Any:
    """Compare our daemon and `llama-server` with and without drafting; llama-server only with supported drafters."""
    files = local_files(load_registry().resolve(options.pair))
    peer_questions = questions(options, suite, limit)
    with ExitStack() as stack:
        ours = stack.enter_context(DaemonSide.start(options))
        sides: dict[str, Side] = {OURS: ours, f"{OURS} plain": ours.plain()}
        is_supported = files.drafter_gguf and not config_of_file(files.drafter_gguf).from_anchor
        plain = {"plain": ("--flash-attn", "on"), "plain without flash": ("--flash-attn", "off")}
        modes: dict[str, Sequence[str]] = {**plain, **LOOKUPS}
        if files.drafter_gguf and is_supported:
            modes |= {f"n_max {n}": dflash(files.drafter_gguf, n) for n in lengths}
        for name, mode in modes.items():
            peer = LlamaServer(server, files.target, options.threads, mode)
            sides[f"llama-server {name}"] = ServerSide(stack.enter_context(peer))
        return compare(sides, peer_questions)


def compare(sides: Mapping[str, Side], peer_questions: list[PeerQuestion]) -> dict[str, Any]:
    """Send every question to every side, starting with another side each time."""
    for side in sides.values():
        side.ask(peer_questions[0], WARM_TOKENS)
    answers = []
    for number, question in enumerate(peer_questions):
        order = rotate([*sides.items()], number)
        answers.append((question.category, {name: side.ask(question, question.max_tokens) for name, side in order}))
        print(f"{number + 1}/{len(peer_questions)} {question.category}", file=sys.stderr)
    result: dict[str, Any] = report(answers, OURS)
    return result


def main() -> int:
    """Build missing programs, compare, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder in which llama.cpp is built")
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--suite", default="code", choices=("code", "chat"), help="prompts of `localdflash bench`")
    parser.add_argument("--backend", default="auto", choices=("auto", "cpu", "llama.cpp"), help="localdflash's backend")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, default=None, help="prompts of each category")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of the comparison with llama-bench")
    parser.add_argument("--lengths", default="3,7", help="draft lengths of llama-server")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    server = build(args.folder, jobs=args.threads)
    options = Options(args.pair, args.backend, args.threads)
    lengths = [int(n) for n in args.lengths.split(",")]
    result = {
        "pair": args.pair,
        "threads": args.threads,
        "plain": compare_plain(server.with_name("llama-bench"), options, args.rounds),
        "answers": compare_drafting(server, options, args.suite, lengths, args.limit),
    }
    result_file.write(args.json, result)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
