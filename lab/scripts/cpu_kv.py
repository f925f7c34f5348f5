"""Quality of the KV cache formats of the CPU engine, compared with float32 on the same weights.

`PYTHONPATH=. python -P lab/scripts/cpu_kv.py [--threads 2] [--pairs embedded,smollm2-135m] [--json FILE]`: held-out
code, and greedy continuations of it. Two formats differ more from each other than from float32, because any change
tips roundings of 8-bit activations over.
"""

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from localdflash.backends.cpu.cpu_kv_cache import CPU_KV_FORMATS
from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.machine.cores import physical_cores
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.lab import result_file
from localdflash.lab.scripts import cpu_quality
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights import gguf
from localdflash.text.tokenizer import Tokenizer

PROMPTS, PROMPT, CONTINUED = 30, 200, 120  # continuations, tokens of a prompt and of its continuation


@torch.inference_mode()
def measure(name: str, files: int | None, threads: int) -> dict[str, Any]:
    """Compare all KV formats with float32 and with float16, on a pair of the registry."""
    path = local_files(load_registry().resolve(name)).target
    context = decoder_config(gguf.read_header(path)).context_length
    sequences = [ids[: context - cpu_quality.ROWS] for ids in cpu_quality.held_out(Tokenizer.load(path), files)]
    reference = load_decoder(path)
    formats = {kv: cpu_quality.Difference() for kv in CPU_KV_FORMATS}
    apart = {kv: cpu_quality.Difference() for kv in CPU_KV_FORMATS[1:]}
    with ExitStack() as stack:
        pairs = {
            kv: stack.enter_context(cpu_quality.open_cpu_pair(path, cpu_quality.MAX_FILE_TOKENS, threads, kv))
            for kv in CPU_KV_FORMATS
        }
        for ids in sequences:
            hidden, _ = reference(torch.tensor([ids]), torch.arange(len(ids)), causal)
            steps = zip(*(cpu_quality.decode_logits(pair.target, ids) for pair in pairs.values()), strict=True)
            for rows in steps:
                at, following = rows[0][0], ids[rows[0][0].start + 1 : rows[0][0].stop + 1]
                exact = reference.logits(hidden[:, at])[0]
                found = {kv: torch.from_numpy(logits.copy()) for kv, (_, logits) in zip(pairs, rows, strict=True)}
                for kv, total in formats.items():
                    total.add(exact, found[kv], following)
                for kv, total in apart.items():
                    total.add(found["f16"], found[kv], following)
        prompts = [ids[:PROMPT] for ids in sequences if len(ids) > PROMPT][:PROMPTS]
        return {
            **{kv: total.report() for kv, total in formats.items()},
            **{f"{kv} beside f16": total.report("f16") for kv, total in apart.items()},
            "continuations as with f16": {kv: agreement(pairs["f16"], pairs[kv], prompts) for kv in apart},
        }


def agreement(first: HostPair, second: HostPair, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the agreement of greedy continuations."""
    same = []
    for prompt in prompts:
        texts = [
            [token for step in generate(pair, Request(prompt, CONTINUED)) for token in step.tokens]
            for pair in (first, second)
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
    result: dict[str, Any] = {"threads": given.threads, "pairs": {}}
    for name in given.pairs.split(","):
        result["pairs"][name] = measured = measure(name, given.files, given.threads)
        print(name, json.dumps(measured), flush=True)
    result_file.write(given.json, result)


if __name__ == "__main__":
    main()
