"""Check that llama.cpp's verify batches give the logits of single-token decoding bit for bit, by weight type.

`PYTHONPATH=. python -P lab/scripts/row_identity.py --json bench/results/rows.json --threads 1`. The embedded target and
a random mixture of experts are quantized to each type and certified. Ten prompts of the bench continue for 200 tokens:
one by one, and in batches of 1 to 32. `--device gpu` uses a GPU of llama.cpp; a slow GPU needs fewer `--prompts`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.certified import choose_mode, measure
from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH, ON_GPU, ON_PROCESSOR, DecodeMode
from localdflash.backends.llamacpp.llama_library import find_gpu
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.llamacpp.placement import ALL_LAYERS, PROCESSOR, Placement
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.lab import result_file
from localdflash.lab.bench import prompt_set
from localdflash.text.tokenizer import Tokenizer
from tests.support.random_models import EMBEDDED, Shape, quantize, write

TYPES = ("Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16")
MIXTURE = Shape("F16", 256, 4, 4, 2, 256, 4096, experts=8, used=2, scale=0.15)


def prompts(count: int) -> list[list[int]]:
    """Return the beginnings of prompts of the bench, as ids of the embedded vocabulary."""
    tokenizer = Tokenizer.load(EMBEDDED)
    texts = [prompt.question or prompt.prefix for prompt in prompt_set.load(None)]
    ids = [tokenizer.encode(text) for text in texts[:: len(texts) // count]]
    return [found[:64] or [1] for found in ids[:count]]


def fill(target: LlamaCppTarget, ids: Sequence[int]) -> None:
    """Replace the cached sequence by these ids."""
    target.crop(0)
    done = 0
    while done < len(ids):
        chunk = ids[done : done + target.max_width]
        target.extend(chunk)
        done += len(chunk)


def decode_single_tokens(
    target: LlamaCppTarget, prompt: Sequence[int], count: int
) -> tuple[list[int], list[NDArray[np.float32]]]:
    """Return the prompt's last token and its greedy continuation, and each token's logits."""
    fill(target, prompt[:-1])
    tokens, rows = [prompt[-1]], []
    for _ in range(count):
        rows.append(target.verify(tokens[-1], EMPTY_DRAFT).logits[0].copy())
        target.keep(1)
        tokens.append(int(rows[-1].argmax()))
    return tokens, rows


def compare_rows(target: LlamaCppTarget, prompt: Sequence[int], count: int, first: int) -> tuple[int, int, set[int]]:
    """Return the draft rows that differ from single-token decoding, all draft rows, and the widths drafted."""
    tokens, rows = decode_single_tokens(target, prompt, count)
    fill(target, prompt[:-1])
    done, wrong, compared, width, widths = 0, 0, 0, first, set()
    while done < count:
        drafted = min(width, count - done, target.max_width)
        draft = Draft("known", tokens[done + 1 : done + drafted], [1.0] * (drafted - 1))
        logits = target.verify(tokens[done], draft).logits
        wrong += sum(not np.array_equal(logits[row], rows[done + row]) for row in range(drafted))
        compared += drafted
        widths.add(drafted)
        target.keep(committed := max(1, drafted // 2))  # as if half of the draft had been accepted
        done += committed
        width = width % MAX_WIDTH + 1
    return wrong, compared, widths


def measure_file(path: Path, arguments: argparse.Namespace, say: Callable[[str], object]) -> dict[str, Any]:
    """Return the mode of a file, its cost, and the number of differing rows."""
    placement, candidates = PROCESSOR, ON_PROCESSOR
    if arguments.device != "cpu":
        placement, candidates = Placement(find_gpu(arguments.device), ALL_LAYERS), ON_GPU
    began = time.perf_counter()
    record = measure(
        lambda repack: llama_library.load_model(path, repack=repack, placement=placement),
        candidates,
        arguments.threads,
        on_gpu=placement is not PROCESSOR,
    )
    seconds = time.perf_counter() - began
    chosen = choose_mode(record, "exact", with_drafter=True)
    known = next((known for known in record.modes if known.mode == chosen.mode), None)
    wrong = rows = 0
    widths: set[int] = set()
    ids = prompts(arguments.prompts)
    with closing(LlamaCppTarget(path, 512, arguments.threads, mode=chosen.mode, placement=placement)) as target:
        for number, prompt in enumerate(ids):
            differ, count, drafted_widths = compare_rows(target, prompt, arguments.tokens, number * 3 % MAX_WIDTH + 1)
            wrong, rows, widths = wrong + differ, rows + count, widths | drafted_widths
            say(f"{path.name} {number + 1}/{len(ids)}: {wrong} of {rows} rows differ")
    return {
        "kind": chosen.kind,
        "widths": _short(chosen.mode),
        "borders": chosen.mode.borders,
        "flash_attention": chosen.mode.flags.flash,
        "classes": [_short(known.mode) for known in record.modes],
        "repacked": chosen.mode.flags.repack,
        "rows_compared": rows,
        "rows_differing": wrong,
        "widths_drafted": f"{min(widths)}-{max(widths)}" if len(widths) == max(widths) else sorted(widths),
        "price_of_a_plain_step": round(record.price(known), 3) if known else None,
        "ms": {"raw": round(record.raw_ms, 3), **({str(k): round(v, 3) for k, v in known.ms.items()} if known else {})},
        "auto": {
            "with_drafter": choose_mode(record, "auto", True).kind,
            "without": choose_mode(record, "auto", False).kind,
        },
        "seconds_to_certify": round(seconds, 1),
    }


def _short(mode: DecodeMode) -> str:
    return ",".join(map(str, mode.widths)).replace("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,", "1-17,")


def main() -> None:
    """Measure all types and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu, gpu, or the name of a GPU")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--types", default=",".join([*TYPES, "mixture Q4_K_M", "mixture Q8_0"]))
    arguments = parser.parse_args()
    where = find_gpu(arguments.device).description if arguments.device != "cpu" else "cpu"
    with tempfile.TemporaryDirectory(prefix="localdflash-rows-") as folder:
        mixture = write(Path(folder) / "mixture.gguf", MIXTURE)
        for name in arguments.types.split(","):
            source = mixture if name.startswith("mixture") else EMBEDDED
            path = quantize(source, Path(folder) / f"{name.replace(' ', '-')}.gguf", name.split()[-1])
            result_file.write(arguments.json, {"on": where} | measure_file(path, arguments, print), name)


if __name__ == "__main__":
    main()
