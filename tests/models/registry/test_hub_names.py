"""Short names of hub models: the file that they select, for all layouts of repositories."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.models.registry import hub
from localdflash.models.registry.hub_names import parse_short_name, select_file
from localdflash.models.registry.registry import load_registry
from tests.support.fake_hub import FakeHub, File, hub_for_tests

UNSLOTH = [
    "BF16/Qwen3-235B-A22B-BF16-00001-of-00002.gguf",
    "BF16/Qwen3-235B-A22B-BF16-00002-of-00002.gguf",
    "Q4_K_M/Qwen3-235B-A22B-Q4_K_M-00001-of-00003.gguf",
    "Q4_K_M/Qwen3-235B-A22B-Q4_K_M-00002-of-00003.gguf",
    "Q4_K_M/Qwen3-235B-A22B-Q4_K_M-00003-of-00003.gguf",
    "Qwen3-235B-A22B-Q2_K.gguf",
    "Qwen3-235B-A22B-UD-IQ2_XXS.gguf",
    "UD-Q4_K_XL/Qwen3-235B-A22B-UD-Q4_K_XL-00001-of-00003.gguf",
    "mmproj-F16.gguf",
    "imatrix_unsloth.dat",
    "README.md",
    "config.json",
]


def choose(spec: str, files: list[str]) -> str:
    requested = parse_short_name(spec)
    assert requested
    return select_file(requested, files)


@pytest.mark.parametrize(
    ("spec", "file"),
    [
        ("hf:o/n", "Q4_K_M/Qwen3-235B-A22B-Q4_K_M-00001-of-00003.gguf"),
        ("hf:o/n:Q4_K_XL", "UD-Q4_K_XL/Qwen3-235B-A22B-UD-Q4_K_XL-00001-of-00003.gguf"),
        ("hf:o/n:bf16", "BF16/Qwen3-235B-A22B-BF16-00001-of-00002.gguf"),
    ],
)
def test_a_quantization_is_chosen(spec: str, file: str) -> None:
    assert choose(spec, UNSLOTH) == file


@pytest.mark.parametrize(
    ("spec", "files", "message"),
    [
        ("hf:o/n:Q5_K_M", UNSLOTH[5:7], "o/n: no Q5_K_M file; choose one of hf:o/n:Q2_K, hf:o/n:UD-IQ2_XXS"),
        (
            "hf:o/n@v1",
            ["a-Q8_0.gguf", "a-Q6_K.gguf"],
            "o/n: several files match; choose one of hf:o/n@v1:Q6_K, hf:o/n@v1:",
        ),
        (
            "hf:o/n:Q8_0",
            ["a-Q8_0.gguf", "b-Q8_0.gguf"],
            "several files match; choose one of hf:o/n/a-Q8_0.gguf, hf:o/n/b-",
        ),
        ("hf:o/n", ["model.safetensors"], "o/n has no GGUF file"),
        ("hf:o/n", ["../x.gguf", "a\x1b.gguf", "con.gguf"], "o/n has no GGUF file"),
    ],
)
def test_choices_are_offered_in_one_line(spec: str, files: list[str], message: str) -> None:
    with pytest.raises(ModelError) as caught:
        choose(spec, files)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()


# The registry, with a hub


@pytest.fixture
def server(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_for_tests(tmp_path, monkeypatch) as running:
        running.files |= {f"o/n/{file}": File(b"GGUF") for file in UNSLOTH}
        yield running


@pytest.mark.parametrize("answer", [b"<html>", b"[1]", b'{"id": "o/n", "siblings": [{}]}'])
def test_answer_that_is_not_a_list_is_refused(answer: bytes, server: FakeHub) -> None:
    server.listing = answer
    with pytest.raises(hub.Unreachable, match=r"^o/n: .*check HF_ENDPOINT") as caught:
        hub.list_files("o/n", None)
    assert "\n" not in str(caught.value)


def test_hub_is_queried_only_on_request(server: FakeHub) -> None:
    with pytest.raises(ModelError, match=r"hf:o/n:Q8_0: not downloaded; run `localdflash models pull hf:o/n:Q8_0`"):
        load_registry().resolve("hf:o/n:Q8_0")
    assert server.requests == []
