"""`localdflash doctor`: check this machine and this installation, each check with its remedy."""

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version

import click

from localdflash.cli.output import print_json, print_table
from localdflash.errors import LocaldflashError, NoDevice

SELF_TEST_TOKENS = 64
SELF_TEST_PREFIX = 'def add(first, second):\n    """Return the sum of two numbers."""\n    '


@dataclass(frozen=True)
class Check:
    """One finding. `status` is ok, warning or failed; `remedy` is empty where there is nothing to do."""

    name: str
    status: str
    detail: str
    remedy: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """Check Python, libraries, processor and the embedded pair. Exit code 1 where something failed."""
    checks = list(_checks())
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_table(("CHECK", "STATUS", "DETAIL", "REMEDY"), [(c.name, c.status, c.detail, c.remedy) for c in checks])
    return 1 if any(check.status == "failed" for check in checks) else 0


def _checks() -> Iterator[Check]:
    for name, check in (
        ("python", _python),
        ("torch", _torch),
        ("cuda", _cuda),
        ("llama-cpp-python", _llama),
        ("processor", _processor),
        ("memory", _memory),
        ("embedded pair", _self_test),
    ):
        yield _guarded(name, check)


def _guarded(name: str, check: Callable[[str], Check]) -> Check:
    """A check that breaks is a finding too: the others still run."""
    try:
        return check(name)
    except LocaldflashError as error:
        return Check(name, "failed", str(error), "reinstall localdflash")
    except PackageNotFoundError:
        return Check(name, "failed", "not installed", "run `pip install localdflash` again")
    except (ImportError, OSError) as error:
        return Check(name, "failed", f"cannot be loaded: {error}", f"run `pip install --force-reinstall {name}`")


def _python(name: str) -> Check:
    return Check(name, "ok", f"{platform.python_version()} at {sys.executable}")


def _torch(name: str) -> Check:
    import torch

    return Check(
        name, "ok", f"{torch.__version__}, {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPU build'}"
    )


def _cuda(name: str) -> Check:
    """Which path the CUDA engine takes on this chip, or why there is none."""
    from localdflash.cuda.device import driver_present, features, find_device

    if not driver_present():
        return Check(name, "ok", "no NVIDIA driver: llama.cpp runs every pair")
    try:
        device = find_device()
    except NoDevice as error:
        what, _, remedy = str(error).partition(": ")
        return Check(name, "warning", f"{what}; llama.cpp runs every pair", remedy)
    import torch

    return Check(name, "ok", f"{torch.cuda.get_device_name(device)}: {features(device).summary()}")


def _llama(name: str) -> Check:
    import llama_cpp.llama_cpp as api

    from localdflash.targets import llama_library

    features = api.llama_print_system_info().decode().split(" : ", 1)[-1]
    on = [part.split("=")[0].strip() for part in features.split("|") if part.strip().endswith("= 1")]
    llama_library.tap_reader()  # ModelError where this build has no taps
    detail = f"{version(name)}, built with {' '.join(on)}"
    if platform.machine() in ("x86_64", "AMD64") and "AVX2" not in on:
        return Check(
            name, "warning", detail, "built without AVX2: `pip install --no-binary llama-cpp-python` for this CPU"
        )
    return Check(name, "ok", detail)


def _processor(name: str) -> Check:
    import psutil

    from localdflash.bench.machine import device

    return Check(name, "ok", f"{device()}, {psutil.cpu_count(logical=False) or psutil.cpu_count()} cores")


def _memory(name: str) -> Check:
    import psutil

    memory = psutil.virtual_memory()
    detail = f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f}"
    if memory.available < 1e9:
        return Check(name, "warning", detail, "close other programs: even the embedded pair wants 1 GB")
    return Check(name, "ok", detail)


def _self_test(name: str) -> Check:
    """Complete once with drafts and once without: the texts must be the same."""
    from localdflash.engine.generate import Request, generate
    from localdflash.loading import LoadedPair, Options
    from localdflash.text.fim import build

    options = Options(backend="auto")
    with LoadedPair(options) as loaded, LoadedPair(replace(options, draft=False)) as plain_pair:
        ids = build(loaded.fim_format(), loaded.tokenizer, SELF_TEST_PREFIX, "\n")
        drafted, plain = Request(ids, SELF_TEST_TOKENS), Request(ids, SELF_TEST_TOKENS)
        with_drafts = [token for step in generate(loaded.pair, drafted) for token in step.tokens]
        without = [token for step in generate(plain_pair.pair, plain) for token in step.tokens]
    stats = drafted.stats
    detail = (
        f"{loaded.backend}: {stats.tokens} tokens, {stats.tokens_per_second:.0f} a second, {stats.tau:.2f} per verify"
    )
    if with_drafts != without:
        return Check(name, "failed", f"{detail}; drafting changed the text", "report this with `doctor --json`")
    return Check(name, "ok", f"{detail}, identical to plain decoding")
