"""Build and run `llama-server`, which decodes with DFlash itself, from the sources of llama-cpp-python.

`python lab/scripts/peers/peer_llama_server.py build --folder DIR` downloads the sdist (checked by its hash), compiles
`llama-server` and `llama-bench` with the options that `pip install llama-cpp-python` uses, and prints the path of the
server. `LlamaServer` runs that binary on a free loopback port for one user, greedy. Only the standard library is used.
"""

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

from localdflash.lab.scripts.peers.llama_source import CMAKE_OPTIONS, PeerError, llama_source, run

TARGETS = ("llama-server", "llama-bench")

START_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 60.0, 300.0, 10.0


def build(folder: Path, jobs: int) -> Path:
    """Build `llama-server` and `llama-bench` in `folder` if they are missing; return the path of the server."""
    binaries = [folder / "build" / "bin" / target for target in TARGETS]
    if not all(binary.is_file() for binary in binaries):
        source = llama_source(folder)
        # llama-cpp-python's build takes further options from this variable, too
        more = shlex.split(os.environ.get("CMAKE_ARGS", ""))
        # No GGML option is set: the package sets none on Linux either, so both get ggml's defaults for this machine.
        run("cmake", "-S", str(source), "-B", str(folder / "build"), *CMAKE_OPTIONS, *more)
        run("cmake", "--build", str(folder / "build"), "--parallel", str(jobs), "--target", *TARGETS)
    return binaries[0]


LOOKUPS = {name: ("--spec-type", name) for name in ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")}


def dflash(drafter: Path, n_max: int) -> Sequence[str]:
    """Return the options for a DFlash drafter with at most `n_max` tokens a draft (3 is llama-server's default)."""
    return "--spec-type", "draft-dflash", "--spec-draft-model", str(drafter), "--spec-draft-n-max", str(n_max)


class LlamaServer:
    """`llama-server` process for one request at a time; a context manager that starts and stops it."""

    def __init__(self, binary: Path, target: Path, threads: int, mode: Sequence[str] = ()) -> None:
        """Prepare the server; `mode` holds the options of speculative decoding, if any."""
        self._port = _free_port()
        self._command = [str(binary), "--model", str(target), "--host", "127.0.0.1", "--port", str(self._port)]
        self._command += ["--threads", str(threads), "--threads-batch", str(threads), "--parallel", "1"]
        # nothing but the model and the mode may differ from run to run
        self._command += ["--fit", "off", "--cache-ram", "0", "--metrics", "--offline", "--no-ui", *mode]
        self._opener = build_opener(ProxyHandler({}))

    def __enter__(self) -> Self:
        """Start the server and wait until the model is loaded; PeerError with the end of its output if it fails."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
        with ExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile())
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, env=env
            )
            stack.callback(self._stop)
            self._wait_until_healthy()
            self._resources = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()

    def _stop(self) -> None:
        """Stop the process, by force if it does not end by itself."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def complete(self, ids: Sequence[int], max_tokens: int, schema: dict[str, Any] | None = None) -> dict[str, Any]:
        """Continue a prompt of token ids greedily, from a cold cache; with a schema as JSON.

        Returns `content`, `tokens` and `timings`, with `draft_n` and `draft_n_accepted` if anything was drafted.
        """
        request: dict[str, Any] = {
            "prompt": list(ids),
            "n_predict": max_tokens,
            "temperature": 0,
            "cache_prompt": False,
            "return_tokens": True,
        }
        if schema is not None:
            request["json_schema"] = schema
        answer = json.loads(self._send("/completion", json.dumps(request).encode()))
        return {name: answer[name] for name in ("content", "tokens", "timings")}

    def counters(self) -> dict[str, float]:
        """Return the server's totals since its start by name, e.g. `spec_decode_num_drafts_total` (verify steps)."""
        lines = self._send("/metrics").decode().splitlines()
        pairs = [line.removeprefix("llamacpp:").split() for line in lines if line.startswith("llamacpp:")]
        return {name: float(value) for name, value in pairs}

    def log(self) -> str:
        """Return what the process has printed so far."""
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def _send(self, path: str, body: bytes | None = None) -> bytes:
        request = Request(
            f"http://127.0.0.1:{self._port}{path}", data=body, headers={"Content-Type": "application/json"}
        )
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as response:
                content: bytes = response.read()
                return content
        except HTTPError as error:
            raise PeerError(f"llama-server {path}: {error.read().decode(errors='replace')}") from error
        except (URLError, OSError) as error:
            raise PeerError(f"llama-server {path}: {error}; it printed: {self._last_words()}") from error

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise PeerError(f"llama-server ended with exit code {self._process.returncode}: {self._last_words()}")
            try:
                self._send("/health")
            except PeerError:
                time.sleep(0.05)
            else:
                return
        raise PeerError(f"llama-server was not ready after {START_SECONDS:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        return " | ".join(self.log().splitlines()[-5:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> int:
    """Build the binaries and print the path of the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build"])
    parser.add_argument("--folder", type=Path, required=True, help="where sources and binaries go")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel compilations")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        binary = build(folder, arguments.jobs)
    except PeerError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{binary}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
