"""Fixtures of all tests: separate folders, no network beyond this machine, Triton's interpreter for the kernels."""

import os
import signal
import socket
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.tmpdir import tmppath_result_key

ROOT = Path(__file__).parent.parent
GPU_TESTS = os.environ.get("LOCALDFLASH_GPU_TESTS")  # set where tests/gpu, and nothing else, runs
if GPU_TESTS != "1":
    os.environ["TRITON_INTERPRET"] = "1"  # must be set before Triton is imported
if not GPU_TESTS:
    from hypothesis import HealthCheck, settings

    settings.register_profile("tests", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")  # a busy machine is not a failure
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line has it; before llama.cpp is loaded
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):  # each test worker has its share of the cores
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // int(workers), 1)))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it in the background, for children too
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let an interrupted run print its failures: the teardown of `tmp_path` raises where this entry is missing."""
    item.stash.setdefault(tmppath_result_key, {})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set LOCALDFLASH_HOME to an empty folder of this test."""
    folder = tmp_path / "home"  # short: a socket lies in it
    monkeypatch.setenv("LOCALDFLASH_HOME", str(folder))
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "llama.cpp")  # "auto" is whatever is faster at this moment
    return folder


@pytest.fixture
def cpu_engine() -> None:
    """Skip the test if the CPU engine was not built with the package."""
    from localdflash.backends.cpu import cpu_library

    if why := cpu_library.why_unavailable():
        pytest.skip(f"our own CPU engine is missing: {why}")


@pytest.fixture
def without_cpu_engine(monkeypatch: pytest.MonkeyPatch) -> str:
    """Pretend that the CPU engine was not built; return the reason."""
    from localdflash.backends.cpu import cpu_library

    why = f"it was not built with the package; {cpu_library.REINSTALL}"
    monkeypatch.setattr(cpu_library, "_load_or_explain", lambda: why)
    return why


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pairs that commands load in this test draft, independent of this machine's speed."""
    from tests.support.costs import drafting_pays

    monkeypatch.setattr("localdflash.models.running_pair.calibrate", drafting_pays)


@pytest.fixture(autouse=True)
def _certified(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certify the mode of llama.cpp that agrees on every machine, whatever it costs here."""
    if GPU_TESTS or request.node.get_closest_marker("measures_rows"):
        return
    from localdflash.backends.llamacpp import certified, decode_flags

    known = certified.MeasuredMode(decode_flags.DEFAULT, {2: 1.0})
    monkeypatch.setattr(certified, "measure", lambda *_: certified.FileMeasurement(1.0, (known,)))


@pytest.fixture(autouse=True)
def _untried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load files without a trial, which would start a process."""
    if not (GPU_TESTS or request.node.get_closest_marker("tries_files")):
        monkeypatch.setattr("localdflash.loading.load_pair.try_first", lambda *_: None)


@pytest.fixture(autouse=True)
def _sound(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Pretend that the GPU's check has passed."""
    if GPU_TESTS or request.node.get_closest_marker("checks_gpu"):
        return
    from localdflash.loading.proof import Subject

    monkeypatch.setattr("localdflash.loading.proof.find_unchecked_subject", lambda *_: None)
    monkeypatch.setattr("localdflash.loading.proof.is_first_check", lambda *_: False)
    monkeypatch.setattr("localdflash.loading.load_pair.engine_status", lambda *_: "sound")
    checked = Subject("a pair", (), {}, home / "cache" / "gpu-checks" / "verdict.json")
    monkeypatch.setattr("localdflash.loading.proof.require_trusted", lambda *_: (checked, checked.verdict("sound")))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, _guarded_method(getattr(socket.socket, name)))
    monkeypatch.setattr(socket, "getaddrinfo", _guarded_lookup(socket.getaddrinfo))


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an untrained pair: target.gguf, and the drafter as drafter.gguf and drafter.safetensors.

    A Qwen3 of 6 layers, hidden size 64 and about 512 tokens; the drafter has 2 layers, block 8, taps 1, 3 and 4. Its
    tokenizer lies beside it as tokenizer.json.
    """
    import torch

    from localdflash.backends.reference.decoder import Decoder
    from localdflash.backends.reference.dflash_model import DFlash
    from localdflash.lab.train import pair_export
    from localdflash.lab.train.dataset import SPECIALS, special_ids, train_tokenizer
    from localdflash.lab.train.loop import initialise
    from localdflash.models.shapes.decoder_config import DecoderConfig
    from localdflash.models.shapes.dflash_config import DFlashConfig

    folder = tmp_path_factory.mktemp("tiny-pair")
    modules = sorted((ROOT / "lab" / "bench" / "prompts").glob("*.py"))[:8]
    tokenizer = train_tokenizer([module.read_text() for module in modules], 512)
    tokenizer.save(str(folder / "tokenizer.json"))
    vocabulary = tokenizer.get_vocab_size() + len(SPECIALS)
    shape = DecoderConfig(vocabulary, 64, 6, 2, 1, 32, 128)
    config = DFlashConfig(replace(shape, num_hidden_layers=2), 8, special_ids(tokenizer)["<|mask|>"], (1, 3, 4))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target, drafter = Decoder(shape).eval(), DFlash(config).eval()
        initialise(target)
        initialise(drafter)
    pair_export.write_target(folder / "target.gguf", target, tokenizer, "tiny target")
    pair_export.write_drafter(folder / "drafter.gguf", drafter, tokenizer, "Q8_0", "tiny drafter")
    pair_export.write_drafter_safetensors(folder / "drafter.safetensors", drafter, shape.num_hidden_layers)
    return folder


@pytest.fixture
def root() -> Path:
    """Return the root of the source tree."""
    return ROOT


def _guarded_method(original: Any) -> Any:
    def method(sock: socket.socket, address: Any) -> Any:
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
            _refuse(address)
        return original(sock, address)

    return method


def _guarded_lookup(original: Any) -> Any:
    def lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host and not _is_local(host):
            _refuse(host)
        return original(host, *args, **kwargs)

    return lookup


def _is_local(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def _refuse(address: Any) -> NoReturn:
    # pytest's failure is not an Exception, so that no code can catch it.
    pytest.fail(f"a test reached for the network: {address!r}")
