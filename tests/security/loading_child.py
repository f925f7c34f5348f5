"""Loads model files on one backend after another, each in a fork of its own: whatever ends the fork is told.

A process that has loaded every library and computed nothing yet. A line of JSON in: backend, target, drafter; a line of
JSON out: how it went ("runs", "refused", "raised", "died", "hung") and what was said.
"""

import json
import os
import resource
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp  # noqa: F401
import torch

from localdflash.backends.cuda.assembly import load_pair
from localdflash.backends.cuda.cuda_sizes import CudaSizes
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.backends.llamacpp import placing
from localdflash.base.errors import LocaldflashError
from localdflash.engine.generate import Request, generate
from localdflash.engine.pair import Pair
from localdflash.loading.backends import load_on
from localdflash.loading.trial import EVERY_BYTE
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.text.tokenizer import Tokenizer
from tests.support.costs import drafting_pays

SECONDS = float(os.environ.get("LOCALDFLASH_LOADING_SECONDS", "20"))  # for one load with what follows it
MEMORY = 6 << 30  # bytes of addresses beside what the libraries have
CONTEXT = 48
PROMPT = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 1, 2, 3, 5]


def run(backend: str, target: Path, drafter: Path | None) -> None:
    """Plan, load, write a few tokens with drafts, and spell them."""
    options = Options(backend=backend, threads=1, context=CONTEXT, device="cpu", rows="fast", costs=drafting_pays)  # type: ignore[arg-type]
    files = LocalPair("it", target, drafter, None, None, None)
    if backend == "cuda":
        CudaSizes(target, drafter)
        write(load_pair(target, drafter, torch.device("cpu"), Options(context=CONTEXT), REFERENCES))
        return
    if backend == "llama.cpp":
        placing.plan_placement(target, drafter, Options(device="cpu"))
        vocabulary = Tokenizer.load(target)
        vocabulary.encode(EVERY_BYTE)
        vocabulary.spell(range(vocabulary.vocab_size))
    running = load_on(backend, files, options)  # type: ignore[arg-type]
    write(running.pair)
    running.measured()
    running.close()


def write(pair: Pair) -> None:
    """A few tokens."""
    for _ in generate(pair, Request(PROMPT, 6)):
        pass


def forked(case: dict[str, Any]) -> dict[str, str]:
    """How the case ended in a fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.write(writer, json.dumps(outcome(case)).encode()[:4096])
        os._exit(0)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], SECONDS)
        said = os.read(reader, 4096) if ready else b""
    finally:
        os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if said:
        return dict(json.loads(said))
    return {"how": "died" if ready else "hung", "said": signal.Signals(os.WTERMSIG(status)).name if status else ""}


def outcome(case: dict[str, Any]) -> dict[str, str]:
    """What Python saw of it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        run(case["backend"], Path(case["target"]), Path(case["drafter"]) if case["drafter"] else None)
    except LocaldflashError as error:
        return {"how": "refused", "said": str(error)[:1000]}
    except BaseException:
        return {"how": "raised", "said": traceback.format_exc()[-2000:]}
    return {"how": "runs", "said": ""}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("{}", flush=True)  # noqa: T201  # everything is there
    for line in sys.stdin:
        print(json.dumps(forked(json.loads(line))), flush=True)  # noqa: T201
