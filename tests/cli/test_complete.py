"""`localdflash complete`: its output, Ctrl-C, and the errors for bad values."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from localdflash.backends.cuda import device
from localdflash.base.errors import UsageError
from localdflash.cli import complete_command
from localdflash.cli.complete_command import offset_of, parse_cursor
from localdflash.models.registry.registry import load_registry
from localdflash.server import private
from tests.cli.conftest import CODE, FINISHES
from tests.lsp.remote.made_up import serving, vllm
from tests.lsp.wire import in_thread


def test_stdout_is_the_insertion_or_json_with_the_statistics(file: Path, complete: Callable[..., Any]) -> None:
    plain = complete(f"{file}:3:5", "--max-tokens", 24)
    assert (plain.code, plain.err) == (0, "")
    assert plain.out
    document = json.loads(complete(f"{file}:3:5", "--max-tokens", 24, "--json").out)
    assert document.keys() == {
        *("insertion", "finish", "tokens", "steps", "tau", "drafted", "accepted", "accept_by_slot"),
        *("steps_by_drafter", "ms", "tokens_per_second"),
    }
    assert document["insertion"] == plain.out
    assert document["finish"] in FINISHES
    assert 1 <= document["tokens"] <= 24
    assert document["steps"] + document["accepted"] == document["tokens"]
    assert sum(document["steps_by_drafter"].values()) == document["steps"]


@pytest.mark.usefixtures("drafting")
@pytest.mark.parametrize(
    ("place", "sampling"), [("3:5", ("--temperature", "0.9", "--seed", "7")), ("5:7", ("--repetition-penalty", "1.3"))]
)
def test_drafting_does_not_change_the_insertion(
    place: str, sampling: tuple[str, ...], file: Path, complete: Callable[..., Any]
) -> None:
    arguments = (f"{file}:{place}", "--max-tokens", 60, "--json", *sampling)
    drafted, plain = json.loads(complete(*arguments).out), json.loads(complete(*arguments, "--no-draft").out)
    assert drafted["insertion"] == plain["insertion"]
    assert drafted["tokens"] == plain["tokens"]
    assert plain["drafted"] == 0
    assert plain["steps"] == plain["tokens"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("where", ["--no-daemon", "--seed=1"])
def test_ctrl_c_ends_loading(where: str, file: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        loaded.append(True)

    monkeypatch.setattr(private, "start", load)
    monkeypatch.setattr(complete_command, "ensure_daemon", load)
    done = run("complete", where, f"{file}:3:5")
    assert (done.code, done.out, loaded) == (130, "", [])


# The prompt in a long file and with other files, as --explain shows it


def test_explain_shows_every_part(long_file: Path, complete: Callable[..., Any]) -> None:
    document = json.loads(complete(f"{long_file}:1001:6", "--explain", "--json").out)
    prefix, middle, word, suffix = document["prompt"]
    assert [part["kind"] for part in document["prompt"]] == ["prefix", "middle", "word", "suffix"]
    assert (word["text"], word["tokens"]) == ("value", 0)
    text = prefix["text"] + middle["text"] + word["text"] + suffix["text"]
    assert text.replace("\n", "") in long_file.read_text().replace("\n", "")
    assert (prefix["cut"], middle["cut"], suffix["cut"]) == (True, False, True)
    assert prefix["text"].startswith(f"value_{prefix['lines'][0]} ")
    assert middle["lines"] == [1000, 1000]
    budget = document["budget"]
    assert sum(part["tokens"] for part in document["prompt"]) <= budget["prompt"] < budget["context"]
    table = complete(f"{long_file}:1001:6", "--explain").out.splitlines()
    assert f"{prefix['lines'][0] + 1}-1001" in next(line for line in table if line.startswith("prefix"))
    assert "(cut)" in next(line for line in table if line.startswith("suffix"))


def test_explain_shows_code_of_other_files(tmp_path: Path, complete: Callable[..., Any]) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "shapes.py").write_text("def area_of_circle(radius):\n    return 3 * radius * radius\n")
    (tmp_path / "app.py").write_text("from shapes import area_of_circle\n\nprint(area_of_circle())\n")
    document = json.loads(complete(f"{tmp_path / 'app.py'}:3:22", "--explain", "--json").out)
    other = document["prompt"][0]
    assert (other["kind"], other["name"], other["left_out"]) == ("import", "shapes.py", False)
    assert "def area_of_circle(radius)" in other["text"]
    assert {part["name"] for part in document["prompt"]} == {"shapes.py", "app.py"}
    assert "shapes.py" in complete(f"{tmp_path / 'app.py'}:3:22", "--explain").out
    document = json.loads(complete(f"{tmp_path / 'app.py'}:3:22", "--max-tokens", 2000, "--json").out)
    assert document["tokens"] <= 512  # half of the context


def test_control_characters_of_a_file_name_are_escaped(tmp_path: Path, complete: Callable[..., Any]) -> None:
    (tmp_path / "a\x1b[31m.py").write_text("x = 1\n")
    shown = complete(f"{tmp_path}/a\x1b[31m.py:1:1", "--explain").out
    assert "\x1b" not in shown
    assert "\\x1b[31m.py" in shown


@pytest.mark.system
@pytest.mark.transport
@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
@pytest.mark.usefixtures("short_home")
def test_the_daemon_gives_the_same_insertion(file: Path, long_file: Path, run: Callable[..., Any]) -> None:
    file.write_bytes(CODE.replace("\n", "\r\n").encode())
    for arguments in (
        (f"{file}:3:5",),
        (f"{file}:5:7",),
        (f"{file}:3:5", "--temperature", "0.9", "--seed", "7"),
        (f"{long_file}:1001:6", "--max-tokens", 30, "--explain"),
    ):
        here = run("complete", *arguments, "--no-daemon", "--threads", 1)
        assert run("complete", *arguments, "--threads", 1) == here
        assert here.code == 0
    document = json.loads(run("complete", f"{long_file}:1001:6", "--threads", 1, "--json").out)
    assert (document["finish"] in FINISHES, "prompt" in document) == (True, False)
    assert document["steps"] + document["accepted"] == document["tokens"]


def test_errors_are_one_line(file: Path, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(serving(vllm(markers=()))) as server:
        monkeypatch.setenv("LOCALDFLASH_SERVER_URL", server.url)
        assert "fill in the middle" in fails(3, "complete", f"{file}:3:5")
        assert "--explain" in fails(2, "complete", f"{file}:3:5", "--explain")
    assert server.url in fails(1, "complete", f"{file}:3:5")


def test_a_next_edit_model_completes_nothing_here(file: Path, fails: Callable[..., str], tmp_path: Path) -> None:
    model = tmp_path / "sweep-next-edit.gguf"
    shutil.copyfile(load_registry().resolve("embedded").target.path, model)
    assert "predicts edits" in fails(3, "complete", f"{file}:3:5", "--pair", model, "--no-daemon")


@pytest.mark.usefixtures("without_cpu_engine")
def test_a_fallback_is_one_line_on_stderr(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "driver_present", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "auto")
    source = tmp_path / "a.py"
    source.write_text("def add(a, b):\n    return \n")
    for command in (("complete", f"{source}:2:12"), ("chat", "-p", "Hi", "--temperature", 0)):
        done = run(*command, "--max-tokens", 200, "--threads", 1, "--no-daemon")
        assert done.code == 0
        (line,) = [line for line in done.err.splitlines() if "CUDA engine" in line]
        assert "llama.cpp runs this pair" in line
        assert "PyTorch" in line


def test_bad_cursors(fails: Callable[..., str]) -> None:
    for place in (
        *("app.py", "app.py:1", "app.py:1:", "app.py::1", "app.py:a:1", "app.py:-1:1", "app.py:1:1.0", "", ":1:1"),
        *("app.py:\u0663:1", "app.py: 1:1", f"app.py:{'9' * 5000}:1"),
    ):
        with pytest.raises(UsageError, match=r"FILE:LINE:COL"):
            parse_cursor(place)
    assert "\\x1b[31m" in fails(2, "complete", "\x1b[31m.py:1:1")


def test_files_that_cannot_be_completed(tmp_path: Path, fails: Callable[..., str]) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "latin.py").write_bytes("# é\n".encode("latin-1"))
    with (tmp_path / "huge.py").open("wb") as stream:
        stream.truncate(1 << 33)  # more than could be read
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe.py")  # reading it would wait for good
    for name, message in {
        "absent.py": "no such file",
        ".": "not a file",
        **({} if sys.platform == "win32" else {"pipe.py": "not a file"}),
        "image.png": "binary",
        "latin.py": "not UTF-8 at byte 2",
        "huge.py": "larger than 4 MB",
    }.items():
        line = fails(2, "complete", f"{tmp_path / name}:1:1")
        assert line.startswith(f"{tmp_path / name}: ")
        assert message in line


@given(st.text(alphabet="ab\n\r\x0b\x0c\x1c\x85\u2028é漢\U0001f600 ", max_size=40), st.data())
def test_offset_of_inverts_line_and_column(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text[:offset]
    line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
    if text[offset - 1 : offset + 1] == "\r\n":
        with pytest.raises(UsageError, match="column"):
            offset_of(text, line, column)  # between the two characters of a line end
    else:
        assert offset_of(text, line, column) == offset


@pytest.mark.parametrize(
    ("text", "line", "column", "last"), [("ab\n", 3, 1, 2), ("ab\n", 0, 1, 2), ("ab\r\n", 1, 4, 3), ("ab", 1, 0, 3)]
)
def test_cursors_outside_of_the_file(text: str, line: int, column: int, last: int) -> None:
    outside = f"line {line}" if line != 1 else f"column {column}"
    with pytest.raises(UsageError, match=rf"^{outside} .*{last}"):
        offset_of(text, line, column)


@pytest.mark.parametrize("name", [".env", ".ssh/config", "#.env#"])
def test_secret_file_is_refused_under_every_name(name: str, tmp_path: Path, fails: Callable[..., str]) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("TOKEN=hunter2\n")
    (tmp_path / "settings.py").symlink_to(name)
    for place in (path, tmp_path / "settings.py"):
        message = fails(2, "complete", f"{place}:1:8", "--no-daemon")
        assert message.startswith(f"{place}: ")
        assert "secrets" in message


@pytest.mark.parametrize("repository", [True, False])
def test_file_in_localdflashignore_is_refused(repository: bool, tmp_path: Path, fails: Callable[..., str]) -> None:
    if repository:
        (tmp_path / ".git").mkdir()
    (tmp_path / ".localdflashignore").write_text("mine.py\n")
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert ".localdflashignore" in fails(2, "complete", f"{tmp_path / 'mine.py'}:1:1")


def test_link_out_of_the_repository_is_refused(
    tmp_path: Path, fails: Callable[..., str], complete: Callable[..., Any]
) -> None:
    (tmp_path / "other.py").write_text("x = ")
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "app.py").symlink_to("../other.py")
    assert "outside of the project" in fails(2, "complete", f"{tmp_path / 'project' / 'app.py'}:1:1")
    (tmp_path / "app.py").symlink_to("other.py")  # in no repository
    assert complete(f"{tmp_path / 'app.py'}:1:5", "--max-tokens", 2).code == 0


def test_gitignored_file_is_completed_without_other_code(
    tmp_path: Path, complete: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("local.py\n")
    (tmp_path / "local.py").write_text("x = ")
    monkeypatch.setattr(
        "localdflash.cli.complete_command.context_of", lambda *_: pytest.fail("other code was added to the prompt")
    )
    assert complete(f"{tmp_path / 'local.py'}:1:5", "--max-tokens", 2, "--explain").code == 0
