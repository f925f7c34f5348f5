"""Phase `llama`: llama.cpp's CUDA backend on the target of phase `steps`, built from source for this chip.

`llama-bench` requests only the last row's logits, so a verify step of llama.cpp would cost a little more.
"""

import json
import os
import shutil
import subprocess
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from localdflash.lab.scripts.gpu.setup import BenchReport, Setup
from localdflash.lab.scripts.gpu.steps import models
from localdflash.lab.scripts.peers.llama_source import CMAKE_OPTIONS

OPTIONS = (
    *CMAKE_OPTIONS,
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DGGML_CUDA_GRAPHS=ON",
    "-DGGML_CUDA_NCCL=OFF",  # only several GPUs need NCCL
    "-DGGML_CUDA_NO_VMM=ON",  # its memory pool would need the driver's library for linking
)
ROWS, TOKENS, REPEATS = (8, 16), 128, 5  # batch widths, single-token steps, repetitions
CONTEXTS, TINY_CONTEXTS = (1024, 16384), (64,)  # tokens


def run(setup: Setup, report: BenchReport) -> None:
    """Build llama.cpp if needed; measure each context with flash attention and without."""
    binary = setup.folder / "llama-build" / "bin" / "llama-bench"
    if not binary.is_file():
        _build(setup, report)
    target, _ = models(setup)
    for flash in (1, 0):
        for context in TINY_CONTEXTS if setup.tiny else CONTEXTS:
            command = [str(binary), "-m", str(target), "-ngl", "99", "-fa", str(flash), "-d", str(context)]
            command += ["-p", ",".join(map(str, ROWS)), "-n", str(8 if setup.tiny else TOKENS)]
            command += ["-r", "1" if setup.tiny else str(REPEATS), "-o", "json"]
            command += ["-t", "1"] if setup.tiny else []
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            name = f"{context} {'with' if flash else 'without'} flash attention"
            if done.returncode:
                report.put(**{name: {"error": done.stderr.strip()[-500:]}})
                continue
            report.put(**{name: times(json.loads(done.stdout))})


def times(answer: list[dict[str, Any]]) -> dict[str, Any]:
    """Return milliseconds of a single-token step and of wider batches from the output of `llama-bench -o json`.

    The fastest repetition counts: on an H200 the second one of a batch took up to twice as long as the others.
    """
    found: dict[str, Any] = {"commit": answer[0]["build_commit"], "backend": answer[0]["backends"]}
    for test in answer:
        ms = min(test["samples_ns"]) / 1e6
        if test["n_gen"]:
            found |= {"plain_ms": round(ms / test["n_gen"], 4), "plain_tok_s": round(max(test["samples_ts"]), 1)}
        else:
            found[f"rows_{test['n_prompt']}_ms"] = round(ms, 4)
    for rows in ROWS:
        found[f"rows_{rows}_in_plain"] = round(found[f"rows_{rows}_ms"] / found["plain_ms"], 3)
    return found


def _build(setup: Setup, report: BenchReport) -> None:
    """Configure and compile, reusing files of an earlier run; RuntimeError if a tool is missing or a step fails."""
    missing = [program for program in ("cmake", "nvcc") if not shutil.which(program)]
    if missing:
        raise RuntimeError(f"llama.cpp: cannot be built; install {' and '.join(missing)}")
    source, build = _source(setup), setup.folder / "llama-build"
    chip = "".join(map(str, torch.cuda.get_device_capability(setup.device)))
    configure = ["cmake", "-S", str(source), "-B", str(build), *OPTIONS]
    configure += ["-DGGML_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={chip}", *_cublas(setup.folder)]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    compile_ = ["cmake", "--build", str(build), "--parallel", str(os.cpu_count()), "--target", "llama-bench"]
    for step, command in (("configure", configure), ("compile", compile_)):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"llama.cpp: {step} failed: {(done.stdout + done.stderr)[-1500:]}")
        report.put(**{step: "done"})


def _cublas(folder: Path) -> list[str]:
    """Return options to use the cuBLAS of torch's wheel, with its headers copied; none if the toolkit has cuBLAS."""
    toolkit = Path(shutil.which("nvcc") or "").resolve().parents[1]
    if any(toolkit.glob("lib*/libcublas.so")) or any(toolkit.glob("targets/*/lib/libcublas.so")):
        return []
    wheels = find_spec("nvidia")
    for wheel in wheels.submodule_search_locations or () if wheels else ():
        for library in Path(wheel).glob("*/lib/libcublas.so.*"):
            headers = folder / "cublas"  # without the wheel's other headers, which may differ from the toolkit's
            headers.mkdir(parents=True, exist_ok=True)
            for header in library.parents[1].glob("include/cublas*"):
                shutil.copy(header, headers)
            light = library.with_name(library.name.replace("libcublas", "libcublasLt"))
            options = [f"CUDA_cublas_LIBRARY={library}", f"CUDA_cublasLt_LIBRARY={light}"]
            return [f"-D{option}" for option in (*options, f"CMAKE_CUDA_FLAGS=-I{headers}")]
    return []


def _source(setup: Setup) -> Path:
    """Return the folder of llama.cpp's source in --llama-source: a checkout, an sdist of bindings, or an archive."""
    if setup.llama_source is None:
        raise RuntimeError("llama.cpp: cannot be built without --llama-source")
    source = setup.llama_source
    if source.is_file():
        unpacked = setup.folder / "llama-source"
        if not unpacked.is_dir():
            with tarfile.open(source) as archive:
                archive.extractall(unpacked.with_suffix(".part"), filter="data")
            unpacked.with_suffix(".part").rename(unpacked)
        source = unpacked
    for folder in (source, source / "vendor" / "llama.cpp", *source.glob("*/vendor/llama.cpp")):
        if (folder / "ggml" / "CMakeLists.txt").is_file():
            return folder
    raise RuntimeError(f"{source}: no source of llama.cpp")
