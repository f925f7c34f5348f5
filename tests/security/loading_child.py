"""Load model files in a process of their own, forked from a server that has imported every library."""

import multiprocessing
import os
import resource
import signal
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

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
from localdflash.loading.trial_child import ALL_UTF8_BYTES
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.text.tokenizer import Tokenizer
from tests.support.costs import drafting_pays

SECONDS = 20.0  # for one load and a few tokens
MEMORY = 6 << 30  # bytes of address space in addition to the libraries'
CONTEXT = 48
PROMPT = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 1, 2, 3, 5]


def run(backend: str, target: Path, drafter: Path | None) -> None:
    """Plan, load, and generate a few tokens with drafts."""
    options = Options(backend=backend, threads=1, context=CONTEXT, device="cpu", rows="fast", costs=drafting_pays)  # type: ignore[arg-type]
    files = LocalPair("it", target, drafter, None, None)
    if backend == "cuda":
        CudaSizes(target, drafter)
        write(load_pair(target, drafter, torch.device("cpu"), Options(context=CONTEXT), REFERENCES))
        return
    if backend == "llama.cpp":
        placing.plan_placement(target, drafter, Options(device="cpu"))
        vocabulary = Tokenizer.load(target)
        vocabulary.encode(ALL_UTF8_BYTES)
        vocabulary.spell(range(vocabulary.vocab_size))
    running = load_on(backend, files, options)  # type: ignore[arg-type]
    write(running.pair)
    running.measured()
    running.close()


def write(pair: Pair) -> None:
    """Generate a few tokens."""
    for _ in generate(pair, Request(PROMPT, 6)):
        pass


def load(backend: str, target: Path, drafter: Path | None) -> tuple[str, str]:
    """Load files in a child; return "runs", "refused", "raised", "died" or "hung", and its message."""
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=report, args=(writer, backend, target, drafter))
    child.start()
    writer.close()
    with reader:
        ended = reader.poll(SECONDS)
        try:
            result: tuple[str, str] | None = reader.recv() if ended else None
        except EOFError:
            result = None
    child.kill()
    child.join()
    return result or ("died" if ended else "hung", signal.Signals(-child.exitcode).name if child.exitcode else "")


def report(writer: Connection, backend: str, target: Path, drafter: Path | None) -> None:
    """Send how loading went, with bounded memory and without output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)
    try:
        run(backend, target, drafter)
    except LocaldflashError as error:
        writer.send(("refused", str(error)[:1000]))
    except BaseException:
        writer.send(("raised", traceback.format_exc()[-2000:]))
    else:
        writer.send(("runs", ""))
