"""What keys and values in 8 bits cost in quality on the CPU engine: beside those in float16, all else the same.

`PYTHONPATH=. python -P bench/cpu_kv.py [--threads 2] [--pairs embedded,smollm2-135m] [--json FILE]`. Held-out code,
file by file and all of it as one text as long as the model's context, and greedy continuations of the starts of files.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.cpu_quality import ROWS, Difference, decoded, held_out, of_engine
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.machine.cores import physical_cores
from localdflash.machine.hardware import commit, device
from localdflash.model.gguf_config import decoder_config
from localdflash.pairs.registry import load_registry, local_files
from localdflash.text.tokenizer import Tokenizer
from localdflash.weights import gguf

LONGEST_TEXT = 8192  # tokens
PROMPTS, PROMPT, CONTINUED = 30, 200, 120  # continuations, tokens of a prompt and of its continuation


def measure(name: str, files: int | None, threads: int) -> dict[str, Any]:
    """Compare both on a pair of the registry."""
    path = local_files(load_registry().resolve(name)).target
    most = min(decoder_config(gguf.read_header(path)).context_length, LONGEST_TEXT)
    sequences = held_out(Tokenizer.load(path), files)
    joined = [token for ids in sequences for token in ids][: most - ROWS]
    results: dict[str, Any] = {}
    with of_engine(path, most, threads, "f16") as halves, of_engine(path, most, threads, "int8") as codes:
        for what, texts in (("files", sequences), ("one text", [joined])):
            total = Difference()
            for ids in (ids[: most - ROWS] for ids in texts):
                both = zip(decoded(halves.target, ids), decoded(codes.target, ids), strict=True)
                for (rows, wanted), (_, found) in both:
                    wanted_rows, found_rows = torch.from_numpy(wanted.copy()), torch.from_numpy(found.copy())
                    total.add(wanted_rows, found_rows, ids[rows.start + 1 : rows.stop + 1])
            results[what] = total.report("f16")
        prompts = [ids[:PROMPT] for ids in sequences if len(ids) > PROMPT][:PROMPTS]
        results["continuations"] = agreement(halves, codes, prompts)
    return results


def agreement(one: HostPair, other: HostPair, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """How far greedy continuations are the same."""
    same = []
    for prompt in prompts:
        texts = [
            [token for step in generate(pair, Request(prompt, CONTINUED)) for token in step.tokens]
            for pair in (one, other)
        ]
        pairs = enumerate(zip(*texts, strict=True))
        same.append(next((i for i, (a, b) in pairs if a != b), CONTINUED))
    return {
        "prompts": len(same),
        "tokens": CONTINUED,
        "the_same": sum(tokens == CONTINUED for tokens in same),
        "mean_tokens_until_they_differ": round(sum(same) / len(same), 1),
    }


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(physical_cores()))
    parser.add_argument("--pairs", default="embedded,smollm2-135m")
    parser.add_argument("--files", type=int, help="held-out files")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    result: dict[str, Any] = {
        "device": device(),
        "threads": given.threads,
        "commit": commit(),
        "command": f"python -P bench/cpu_kv.py --threads {given.threads} --pairs {given.pairs}",
        "pairs": {},
    }
    for name in given.pairs.split(","):
        result["pairs"][name] = measured = measure(name, given.files, given.threads)
        print(name, json.dumps(measured), flush=True)
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
