"""FIM support of a pair: the header alone agrees with the loaded vocabulary."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from localdflash.base.errors import ModelError
from localdflash.base.files.paths import config_folder
from localdflash.loading.completion_support import require_completion, supports_completion
from localdflash.models.registry.registry import load_registry
from localdflash.text.fim_formats import FORMATS, detect
from tests.support.gguf_files import write_header

ENTRY = """schema = 1
[[pair]]
id = "mine"
description = "a model"
backends = ["cpu"]
fim = "{}"
[pair.target]
path = "{}"
"""


QWEN = [*FORMATS["qwen"].markers, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>"]
SPECIAL_TOKENS = {  # that code models of an architecture have
    "qwen2": [*QWEN, "<|file_sep|>", "<|object_ref_start|>", "<|vision_start|>"],
    "qwen3moe": [*QWEN, "<|file_sep|>", "<tool_call>", "<think>"],
    "mellum": [*FORMATS["mellum"].markers, "<filename>", "<|endoftext|>", "<think>"],
    "llama": ["[INST]", "[/INST]", "[TOOL_CALLS]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"],
}


def test_the_registry_s_completion_models_are_detected_without_their_names() -> None:
    pairs = [pair for pair in load_registry().pairs.values() if pair.fim and pair.target.repository]
    assert len(pairs) > 8
    for pair in pairs:
        tokens = SPECIAL_TOKENS[pair.architecture or ""]
        facts = {"general.architecture": pair.architecture, "general.name": "model"}
        assert detect(Mock(has_special=tokens.__contains__, metadata=facts.get)).name == pair.fim, pair.id


def test_every_fim_format_is_found_in_a_header(tmp_path: Path) -> None:
    for name, form in FORMATS.items():
        if form.markers:
            tokens = [*form.markers, *([form.family_token] if form.family_token else [])]
            assert supports_completion(str(write_header(tmp_path / "m.gguf", "a", *tokens, name=form.model_name))), name


def test_a_model_without_markers_is_refused(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "a", "<|fim_prefix|>", "<|im_end|>")
    with pytest.raises(ModelError, match=r"m\.gguf: vocabulary: no fill-in-the-middle tokens"):
        require_completion(str(path))
    assert not supports_completion(str(path))
    path.write_bytes(b"GGUF and nothing more")
    with pytest.raises(ModelError) as caught:
        require_completion(str(path))
    assert "fill-in-the-middle" not in str(caught.value)


def test_the_registry_entry_has_precedence(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "a")
    config_folder().mkdir(parents=True)
    file = config_folder() / "models.toml"
    file.write_text(ENTRY.format("prefix", path))
    require_completion("mine")
    file.write_text(ENTRY.format("prefiks", path))
    with pytest.raises(ModelError, match="did you mean 'prefix'"):
        require_completion("mine")
    require_completion("qwen3-8b")  # its file is not here


def test_next_edit_models_complete(tmp_path: Path) -> None:
    """By an entry, by the name in the header, or by the file's name; another format of theirs is refused."""
    named = write_header(tmp_path / "m.gguf", "a", *FORMATS["seed"].markers, name="Zeta 2.1")
    unnamed = write_header(tmp_path / "sweep-next-edit-1.5b.gguf", "a", *QWEN)
    config_folder().mkdir(parents=True)
    entry = ENTRY.replace("fim = ", "next_edit = ")
    (config_folder() / "models.toml").write_text(entry.format("sweep", write_header(tmp_path / "x.gguf", "a")))
    assert all(map(supports_completion, (str(named), str(unnamed), "mine")))
    (config_folder() / "models.toml").unlink()
    other = write_header(tmp_path / "other.gguf", "a", *QWEN, name="Sweep Next Edit V2 7B")
    with pytest.raises(ModelError, match="predicts edits and does not fill in"):
        require_completion(str(other))
