"""Whether a pair fills in code is known from its header alone, and agrees with what its vocabulary says once loaded."""

from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from localdflash.base.files.paths import config_folder
from localdflash.loading.filling import check_fills, fills
from localdflash.text.fim import FORMATS
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


def entry(fim: str, path: Path) -> None:
    config_folder().mkdir(parents=True, exist_ok=True)
    (config_folder() / "models.toml").write_text(ENTRY.format(fim, path))


def test_every_format_is_seen_in_a_header(tmp_path: Path) -> None:
    for name, form in FORMATS.items():
        if form.markers:
            tokens = [*form.markers, *([form.telltale] if form.telltale else [])]
            assert fills(str(write_header(tmp_path / "m.gguf", "a", *tokens, name=form.model_name))), name


def test_a_model_without_markers_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "a", "<|fim_prefix|>", "<|im_end|>")
    with pytest.raises(ModelError, match=r"m\.gguf: vocabulary: no fill-in-the-middle tokens.*at the end of a file"):
        check_fills(str(path))
    assert not fills(str(path))


def test_an_entry_decides(tmp_path: Path) -> None:
    path = write_header(tmp_path / "m.gguf", "a")
    entry("prefix", path)
    check_fills("mine")
    entry("prefiks", path)
    with pytest.raises(ModelError, match="fim = 'prefiks': no such format; did you mean 'prefix'"):
        check_fills("mine")


def test_what_is_not_here_is_not_judged() -> None:
    check_fills("qwen3-8b")


def test_a_damaged_file_is_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF and nothing more")
    with pytest.raises(ModelError) as caught:
        check_fills(str(path))
    assert "fill-in-the-middle" not in str(caught.value)
