"""The prompt of a completion in a long file and with other files, as --explain shows it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_notice_names_the_lines_of_the_prompt_where_some_were_left_out(
    long_file: Path, complete: Callable[..., Any]
) -> None:
    done = complete(f"{long_file}:1001:6", "--max-tokens", 30)
    assert done.code == 0
    assert re.search(r"lines 9\d\d to 10\d\d.*--explain", done.err)
    assert done.err.count("\n") == 1


def test_explain_shows_every_part(long_file: Path, complete: Callable[..., Any]) -> None:
    told = json.loads(complete(f"{long_file}:1001:6", "--explain", "--json").out)
    prefix, middle, word, suffix = told["prompt"]
    assert [part["kind"] for part in told["prompt"]] == ["prefix", "middle", "word", "suffix"]
    assert (word["text"], word["tokens"]) == ("value", 0)
    text = prefix["text"] + middle["text"] + word["text"] + suffix["text"]
    assert text.replace("\n", "") in long_file.read_text().replace("\n", "")
    assert (prefix["cut"], middle["cut"], suffix["cut"]) == (True, False, True)
    assert prefix["text"].startswith(f"value_{prefix['lines'][0]} ")
    assert middle["lines"] == [1000, 1000]
    assert sum(part["tokens"] for part in told["prompt"]) <= told["budget"]["prompt"] < told["budget"]["context"]
    table = complete(f"{long_file}:1001:6", "--explain").out.splitlines()
    assert f"{prefix['lines'][0] + 1}-1001" in next(line for line in table if line.startswith("prefix"))
    assert "(cut)" in next(line for line in table if line.startswith("suffix"))


def test_explain_shows_code_of_other_files(tmp_path: Path, complete: Callable[..., Any]) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "shapes.py").write_text("def area_of_circle(radius):\n    return 3 * radius * radius\n")
    (tmp_path / "app.py").write_text("from shapes import area_of_circle\n\nprint(area_of_circle())\n")
    told = json.loads(complete(f"{tmp_path / 'app.py'}:3:22", "--explain", "--json").out)
    other = told["prompt"][0]
    assert (other["kind"], other["name"], other["left_out"]) == ("import", "shapes.py", False)
    assert "def area_of_circle(radius)" in other["text"]
    assert "shapes.py" in complete(f"{tmp_path / 'app.py'}:3:22", "--explain").out
    told = json.loads(complete(f"{tmp_path / 'app.py'}:3:22", "--max-tokens", 2000, "--json").out)
    assert told["tokens"] <= 512  # half of the context


def test_control_characters_of_a_file_name_are_escaped(tmp_path: Path, complete: Callable[..., Any]) -> None:
    (tmp_path / "a\x1b[31m.py").write_text("x = 1\n")
    shown = complete(f"{tmp_path}/a\x1b[31m.py:1:1", "--explain").out
    assert "\x1b" not in shown
    assert "\\x1b[31m.py" in shown
