"""localdflash against llama.cpp itself, on the same two GGUF files, threads and prompts, greedy, in turn.

`python bench/peers/compare.py --folder DIR --json FILE`; llama-server and llama-bench are built into DIR first. Two
parts: plain decoding against `llama-bench`, which only times decodes, with flash attention and without; drafting
against `llama-server --spec-type draft-dflash` at each draft length asked for. Times are decoding times, prompts
excluded, as each program gives them. `--backend` is what runs our side.
"""

import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from llama_server import LlamaServer, build  # type: ignore[import-not-found]  # beside this script

from localdflash.backend.options import Options
from localdflash.bench.prompt_set import load
from localdflash.bench.run import prompt_ids, run_prompt
from localdflash.engine.draft import NOTHING
from localdflash.loading.load import LoadedPair
from localdflash.machine.hardware import commit, device

PLAIN_TOKENS, PLAIN_ROUNDS = 128, 9


def compare_plain(binary: Path, options: Options) -> dict[str, Any]:
    """Tokens a second of plain decoding from an empty context: our loop and `llama-bench`, in turn."""
    with LoadedPair(replace(options, draft=False)) as loaded:
        target, options = loaded.files.target, replace(options, backend=loaded.backend)
    command = [str(binary), "-m", str(target), "-t", str(options.threads), "-p", "0", "-n", str(PLAIN_TOKENS)]
    command += ["-r", "3", "-fa", "0,1", "-o", "json"]
    ours: list[float] = []
    theirs: list[list[float]] = []
    for _ in range(PLAIN_ROUNDS):
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
        assert loaded.host
        model, token, rates = loaded.host.target, 1, []
        for _ in range(4):
            model.crop(0)
            began = time.perf_counter()
            for _ in range(PLAIN_TOKENS):
                token = int(model.verify(token, NOTHING).logits[0].argmax())
                model.keep(1)
            rates.append(PLAIN_TOKENS / (time.perf_counter() - began))
    return sum(rates[1:]) / 3  # the first warms up, as llama-bench does


def compare_drafting(server: Path, options: Options, lengths: list[int], limit: int | None) -> dict[str, Any]:
    """Both programs over the prompt set, one prompt after the other on each in turn."""
    prompts = load(limit)
    with ExitStack() as stack:
        loaded = stack.enter_context(LoadedPair(options))
        files = loaded.files
        peers = {
            n: stack.enter_context(LlamaServer(server, files.target, files.drafter_gguf, options.threads, n))
            for n in lengths
        }
        ours: dict[str, list[float]] = {"tokens": [], "ms": [], "steps": []}
        theirs: dict[int, dict[str, list[float]]] = {n: {"tokens": [], "ms": [], "accepted": []} for n in lengths}
        same = dict.fromkeys(lengths, 0)
        for peer in peers.values():
            peer.complete(prompt_ids(loaded, prompts[0])[0], 16)  # its first drafts are slow
        for number, prompt in enumerate(prompts):
            ids, ends = prompt_ids(loaded, prompt)
            run = run_prompt(loaded.pair, ids, ends, prompt.max_tokens)
            ours["tokens"].append(run.stats.tokens)
            ours["ms"].append(run.stats.total_ms)
            ours["steps"].append(run.stats.steps)
            for n, peer in peers.items():
                answer = peer.complete(ids, prompt.max_tokens)
                timings = answer["timings"]
                theirs[n]["tokens"].append(max(timings["predicted_n"] - 1, 0))
                theirs[n]["ms"].append(timings["predicted_ms"])
                theirs[n]["accepted"].append(timings.get("draft_n_accepted", 0))
                same[n] += answer["tokens"] == run.ids
            print(f"{number + 1}/{len(prompts)} {prompt.id}", file=sys.stderr)
    rate = sum(ours["tokens"]) / sum(ours["ms"]) * 1e3
    result: dict[str, Any] = {
        "prompts": len(prompts),
        "backend": loaded.backend,
        "ours": {"tok_s": round(rate, 1), "tau": round(sum(ours["tokens"]) / sum(ours["steps"]), 3)},
        "llama_server": {},
    }
    for n, counted in theirs.items():
        tokens, their_rate = sum(counted["tokens"]), sum(counted["tokens"]) / sum(counted["ms"]) * 1e3
        result["llama_server"][f"n_max {n}"] = {
            "tok_s": round(their_rate, 1),
            "tau": round(tokens / (tokens - sum(counted["accepted"])), 3),
            "ours_over_theirs": round(rate / their_rate, 3),
            "same_text": f"{same[n]}/{len(prompts)}",
        }
    return result


def main() -> int:
    """Build what is missing, compare, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the peer is built")
    parser.add_argument("--pair", default="embedded")
    parser.add_argument("--backend", default="auto", choices=("auto", "cpu", "llama.cpp"), help="of our side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=int, default=None, help="prompts of each category")
    parser.add_argument("--lengths", default="3,7", help="draft lengths of llama-server")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    server = build(args.folder, jobs=args.threads)
    options = Options(args.pair, args.backend, args.threads)
    result = {
        "pair": args.pair,
        "device": device(),
        "threads": args.threads,
        "commit": commit(),
        "command": f"python bench/peers/compare.py --folder DIR --backend {args.backend} --threads {args.threads}"
        f" --lengths {args.lengths}",
        "plain": compare_plain(server.with_name("llama-bench"), options),
        "drafting": compare_drafting(server, options, [int(n) for n in args.lengths.split(",")], args.limit),
    }
    args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
