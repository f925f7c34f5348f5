"""`export` prints only flags that the engine documents, quoted for a shell."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import ModelError, UsageError
from localdflash.lab.export.launch_commands import LAUNCHERS, ExportOptions, LaunchCommand
from localdflash.models.registry.pair_entry import DrafterSource, PairEntry, TargetSource
from localdflash.models.registry.registry import load_registry

# The flags, and where each engine documents them, as read in November 2026.
DOCUMENTED = {
    # vllm docs/features/speculative_decoding/README.md, 01ed47b; docs.vllm.ai/en/v0.8.5/serving/engine_args.html;
    # docs.vllm.ai/en/v0.32.0/features/speculative_decoding/acceptance_metrics
    "vllm": {"--speculative-config", "--max-model-len", "--per-request-spec-decode-metrics"},
    # z-lab/dflash README.md, 0a2da23; sglang docs_new/docs/advanced_features/speculative_decoding.mdx, 16974b8, and
    # docs/advanced_features/server_arguments.md
    "sglang": {
        *("--model-path", "--context-length", "--speculative-algorithm", "--speculative-draft-model-path"),
        *("--speculative-draft-model-revision", "--speculative-num-draft-tokens"),
    },
    # llama.cpp tools/server/README.md and docs/speculative.md, as in llama-cpp-python 0.3.36
    "llama-server": {
        *("--model", "--hf-repo", "--hf-file", "--ctx-size"),
        *("--spec-type", "--spec-draft-model", "--spec-draft-n-max"),
    },
}
ALL = ExportOptions(draft_tokens=5, context=8192)


@pytest.fixture
def pair() -> PairEntry:
    """Qwen3 4B of the registry."""
    return load_registry().pair("qwen3-4b")


def flags(launch: LaunchCommand) -> dict[str, str]:
    """Return every flag with its value; each may occur once."""
    places = [place for place, word in enumerate(launch.argv) if word.startswith("--")]
    found = {launch.argv[place]: launch.argv[place + 1] for place in places}
    assert len(found) == len(places)
    return found


def launch_command(engine: str, pair: PairEntry, options: ExportOptions) -> LaunchCommand | None:
    try:
        return LAUNCHERS[engine](pair, options)
    except ModelError:
        return None


@pytest.mark.parametrize("engine", LAUNCHERS)
def test_every_flag_is_documented(engine: str, pair: PairEntry, tmp_path: Path) -> None:
    (tmp_path / "a target.gguf").touch()
    local = replace(pair.target, repository=None, file=str(tmp_path / "a target.gguf"))
    assert pair.drafter
    pinned = replace(pair, drafter=replace(pair.drafter, revision="abc123"))
    seen: set[str] = set()
    for one in (*load_registry().pairs.values(), replace(pair, target=local), pinned):
        for options in (ExportOptions(), ALL):
            if launch := launch_command(engine, one, options):
                seen |= flags(launch).keys()
                assert shlex.split(launch.shell().replace("\\\n", "")) == list(launch.argv)
    assert seen == DOCUMENTED[engine]  # printed and listed flags agree


@pytest.mark.parametrize(("engine", "tokens"), [("vllm", 5), ("sglang", 6), ("llama-server", 5)])
def test_draft_tokens_count_drafts_and_sglang_counts_rows(engine: str, tokens: int, pair: PairEntry) -> None:
    words = " ".join(LAUNCHERS[engine](pair, ALL).argv)
    flag = {"vllm": '"num_speculative_tokens": ', "sglang": "num-draft-tokens ", "llama-server": "n-max "}[engine]
    assert f"{flag}{tokens}" in words
    with pytest.raises(UsageError, match=r"--draft-tokens 16: .* drafts at most 15"):
        LAUNCHERS[engine](pair, ExportOptions(draft_tokens=16))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_named_target(engine: str, pair: PairEntry, tmp_path: Path) -> None:
    assert "owner/name-AWQ" in LAUNCHERS[engine](pair, ExportOptions(target="owner/name-AWQ")).argv
    assert str(tmp_path) in LAUNCHERS[engine](pair, ExportOptions(target=str(tmp_path))).argv
    for wrong in ("-x", "--host", "name", "a/b/c", "../x/y", "a b/c", "$(id)/x", ""):
        with pytest.raises(UsageError, match="--target"):
            LAUNCHERS[engine](pair, ExportOptions(target=wrong))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vllm", {"drafter": None}, "no drafter is known for 'qwen3-4b'; name one with --drafter"),
    (
        "vllm",
        {"drafter": DrafterSource(None, "/d.safetensors")},
        "vLLM reads only safetensors from a Hugging .*; add --folder, or export 'qwen3-4b' to llama-server",
    ),
    (
        "sglang",
        {"drafter": DrafterSource(None, "/d.safetensors")},
        "SGLang reads only safetensors from a Hugging .*; export 'qwen3-4b' to llama-server",
    ),
    (
        "sglang",
        {"drafter": DrafterSource("a/b", "d.safetensors")},
        "SGLang does not run the GGUF target of 'qwen3-4b'",
    ),
    (
        "vllm",
        {"drafter": DrafterSource("a/b", "d.safetensors", kind="dspark")},
        "cannot export dspark drafters to vLLM; export to llama-server",
    ),
    ("llama-server", {"target": TargetSource(None, "/nowhere/t.gguf")}, "/nowhere/t.gguf: no such file"),
    ("llama-server", {"target": TargetSource("a/b", "t.gguf", revision="r1")}, "cannot select revision r1"),
]


@pytest.mark.parametrize(("engine", "other", "message"), REFUSED)
def test_what_an_engine_cannot_run_is_refused(
    engine: str, other: dict[str, Any], message: str, pair: PairEntry
) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        LAUNCHERS[engine](replace(pair, **other), ExportOptions())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("engine", "name"), [("vllm", "vLLM"), ("sglang", "SGLang"), ("llama-server", "llama-server")])
def test_a_drafter_that_every_engine_misreads_is_exported_to_none(engine: str, name: str) -> None:
    message = f"{name} misreads drafters .* train another with `localdflash train drafter --fresh --first-slot mask`"
    with pytest.raises(ModelError, match=message):
        LAUNCHERS[engine](load_registry().pair("smollm2-135m"), ExportOptions())


def test_names_are_quoted_and_control_characters_refused(pair: PairEntry, tmp_path: Path) -> None:
    for name, fine in (("it's $(id) `x`.gguf", True), ("a\nb.gguf", False), ("\x1b[2J.gguf", False)):
        (tmp_path / name).touch()
        strange = replace(pair, target=TargetSource(None, str(tmp_path / name)))
        if not fine:
            with pytest.raises(ModelError, match="not a name to type into a shell"):
                LAUNCHERS["llama-server"](strange, ExportOptions())
            continue
        launch = LAUNCHERS["llama-server"](strange, ExportOptions())
        assert shlex.split(launch.shell().replace("\\\n", ""))[2] == str(tmp_path / name)
