"""Build the command that runs a pair in another engine: vLLM, SGLang or llama-server.

vLLM and SGLang read the drafter from its repository and need an unquantized, AWQ or GPTQ target; llama-server needs
GGUF files. Only documented flags are used; tests/lab/export/test_launch_commands.py lists them with their sources.
"""

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localdflash.base.convert import convert
from localdflash.base.errors import ModelError, UsageError
from localdflash.base.files.typed_paths import absolute_path
from localdflash.models.registry.pair_entry import DrafterSource, PairEntry
from localdflash.models.registry.safe_names import Repository
from localdflash.models.shapes.dflash_file import config_of_file

KINDS = {"dflash": "draft-dflash", "dflash2": "draft-dflash", "dspark": "draft-dspark"}  # -> llama-server's --spec-type
MISREADS_ANCHOR = (
    "misreads drafters that propose from the anchor; train another with"
    " `localdflash train drafter --fresh --first-slot mask`"
)


@dataclass(frozen=True)
class ExportOptions:
    """Export options; None means the default of the pair or of the engine."""

    target: str | None = None  # owner/name or a folder, for vLLM and SGLang
    draft_tokens: int | None = None  # per step, at most the drafter's block size minus one
    context: int | None = None  # tokens


@dataclass(frozen=True)
class LaunchCommand:
    """Command line that runs a pair; ModelError for arguments with unprintable characters."""

    argv: tuple[str, ...]
    needs: tuple[str, ...]  # prerequisites, one line each

    def __post_init__(self) -> None:
        for word in self.argv:
            if not word.isprintable():
                raise ModelError(f"{word!a}: not a name to type into a shell; rename the file")

    def shell(self) -> str:
        """Return the command for a shell, with each flag on its own line."""
        quoted = map(shlex.quote, self.argv)
        return " ".join(f"\\\n  {word}" if word.startswith("--") else word for word in quoted)


def vllm(pair: PairEntry, options: ExportOptions) -> LaunchCommand:
    """Return the `vllm serve` command; ModelError if vLLM cannot run the pair."""
    drafter, repository = _published_drafter(pair, "vLLM")
    tokens = _draft_tokens(drafter, options)
    if tokens is None:
        raise ModelError(f"{drafter.name}: unknown block size, which vLLM needs; add --draft-tokens")
    newest = f"the drafter's newest version, because vLLM cannot select revision {drafter.revision}"
    needs = [newest] if drafter.revision else []
    return vllm_serve(_target(pair, options, "vLLM", drafter), repository, tokens, options.context, *needs)


def vllm_serve(target: str, drafter: str, draft_tokens: int, context: int | None, *needs: str) -> LaunchCommand:
    """Return the `vllm serve` command of a target and a drafter, each a repository or a folder; "" means no drafter."""
    speculative = {"method": "dflash", "model": drafter, "num_speculative_tokens": draft_tokens}
    argv = ["vllm", "serve", target]
    if drafter:  # with the acceptance of each answer, which `localdflash chat` shows
        argv += ["--speculative-config", json.dumps(speculative), "--per-request-spec-decode-metrics", "summary"]
    argv += _flag_with_value("--max-model-len", context)
    version = "vLLM 0.29 or newer, which reads DFlash and DFlash 2 drafters" if drafter else "vLLM"
    return LaunchCommand(tuple(argv), (version, *needs))


def sglang(pair: PairEntry, options: ExportOptions) -> LaunchCommand:
    """Return the `python3 -m sglang.launch_server` command; ModelError if SGLang cannot run the pair."""
    drafter, repository = _published_drafter(pair, "SGLang")
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", _target(pair, options, "SGLang", drafter)]
    argv += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", repository]
    if drafter.revision:
        argv += ["--speculative-draft-model-revision", drafter.revision]
    tokens = _draft_tokens(drafter, options)
    argv += _flag_with_value("--speculative-num-draft-tokens", None if tokens is None else tokens + 1)  # the block size
    argv += _flag_with_value("--context-length", options.context)
    kind = "DFlash 2" if drafter.kind == "dflash2" else "DFLASH"
    return LaunchCommand(tuple(argv), (f"an SGLang whose documentation lists {kind} among the speculative algorithms",))


def llama_server(pair: PairEntry, options: ExportOptions) -> LaunchCommand:
    """Return the `llama-server` command; ModelError if it cannot run the pair."""
    drafter = _drafter(pair)
    _check_anchor(drafter, "llama-server")
    if options.target is not None:
        raise UsageError("--target: only for vLLM and SGLang; llama-server runs the pair's own GGUF file")
    needs = [f"llama.cpp with --spec-type {KINDS[drafter.kind]}, as in llama-cpp-python 0.3.36"]
    argv = ["llama-server", *_gguf_target(pair)]
    gguf = drafter.path.with_suffix(".gguf")
    if not gguf.is_file():
        needs.append(_describe_conversion(gguf, drafter))
    argv += ["--spec-type", KINDS[drafter.kind], "--spec-draft-model", str(gguf)]
    argv += _flag_with_value("--spec-draft-n-max", _draft_tokens(drafter, options))
    argv += _flag_with_value("--ctx-size", options.context)
    return LaunchCommand(tuple(argv), tuple(needs))


LAUNCHERS: dict[str, Callable[[PairEntry, ExportOptions], LaunchCommand]] = {
    "vllm": vllm,
    "sglang": sglang,
    "llama-server": llama_server,
}


def _drafter(pair: PairEntry) -> DrafterSource:
    """Return the drafter; ModelError if there is none."""
    if pair.drafter is None:
        raise ModelError(f"no drafter is known for {pair.id!r}; name one with --drafter")
    return pair.drafter


def _check_anchor(drafter: DrafterSource, server: str) -> None:
    """Raise ModelError if the drafter's file proposes from the anchor."""
    gguf = drafter.path.with_suffix(".gguf")
    if drafter.kind == "dflash" and gguf.is_file():
        config = config_of_file(gguf)
        if config.kind == "dflash" and config.from_anchor:
            raise ModelError(f"{gguf}: {server} {MISREADS_ANCHOR}")


def _published_drafter(pair: PairEntry, server: str) -> tuple[DrafterSource, str]:
    """Return the drafter and its repository; raise ModelError if the drafter is not published as safetensors."""
    drafter = _drafter(pair)
    if drafter.repository is None or drafter.format != "safetensors":
        _check_anchor(drafter, server)
        folder = "add --folder, or " if server == "vLLM" and drafter.kind == "dflash" else ""
        raise ModelError(
            f"{drafter.name}: {server} reads only safetensors from a Hugging Face repository; {folder}export"
            f" {pair.id!r} to llama-server"
        )
    if drafter.kind == "dspark":
        raise ModelError(f"{drafter.name}: cannot export dspark drafters to {server}; export to llama-server")
    return drafter, drafter.repository


def _target(pair: PairEntry, options: ExportOptions, server: str, drafter: DrafterSource) -> str:
    """Return the target's repository or folder: `--target`, else the model that the drafter was trained for."""
    if options.target is None:
        if drafter.trained_for:
            return drafter.trained_for
        raise ModelError(
            f"{server} does not run the GGUF target of {pair.id!r}; give its unquantized, AWQ or GPTQ repository with"
            " --target"
        )
    if options.target and (folder := absolute_path(options.target)).is_dir():
        return str(folder)
    return str(convert(options.target, Repository, f"--target {options.target!r}, not a folder", error=UsageError))


def _gguf_target(pair: PairEntry) -> tuple[str, ...]:
    """Return llama-server's arguments for the target: its local GGUF file, else the repository to download it from."""
    target = pair.target
    if target.path.is_file():
        return "--model", str(target.path.absolute())
    if target.package or target.adapted:
        source = "is made on this machine" if target.adapted else f"comes with {target.fetched_from}"
        raise ModelError(
            f"the target of {pair.id!r} {source}, which llama-server cannot download; run"
            f" `localdflash models pull {shlex.quote(pair.id)}` first"
        )
    if target.repository is None:
        raise ModelError(f"{target.path}: no such file")
    if target.revision:
        raise ModelError(
            f"llama-server cannot select revision {target.revision} of the target of {pair.id!r}; run"
            f" `localdflash models pull {shlex.quote(pair.id)}` first"
        )
    return "--hf-repo", target.repository, "--hf-file", target.file


def _describe_conversion(gguf: Path, drafter: DrafterSource) -> str:
    if drafter.format == "gguf":
        return f"{gguf}: download it from {drafter.name}"
    published = drafter.trained_for or "the target"
    return (
        f"{gguf}: make it with llama.cpp's convert_hf_to_gguf.py from the folder of {drafter.name}, with"
        f" --target-model-dir and the folder of {published}"
    )


def _draft_tokens(drafter: DrafterSource, options: ExportOptions) -> int | None:
    """Return the requested number of draft tokens, else the block size minus 1; None if the block size is unknown.

    UsageError if the requested number exceeds the block size minus 1: the block begins with an already known token.
    """
    max_tokens = None if drafter.block_size is None else drafter.block_size - 1
    if options.draft_tokens is None:
        return max_tokens
    if max_tokens is not None and options.draft_tokens > max_tokens:
        raise UsageError(f"--draft-tokens {options.draft_tokens}: {drafter.name} drafts at most {max_tokens}")
    return options.draft_tokens


def _flag_with_value(flag: str, value: int | None) -> list[str]:
    return [] if value is None else [flag, str(value)]
