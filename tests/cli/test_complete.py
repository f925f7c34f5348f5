import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.cli import remote
from localdflash.cli.complete import offset_of, parse_place, read_text
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Step
from localdflash.errors import UsageError
from localdflash.loading.load import LoadedPair
from tests.support import daemons

FINISHES = ("line", "statement", "block", "suffix", "repeat", "stop", "length")
CODE = 'def add(first, second):\n    """Return the sum."""\n    \n\nprint(add(1, 2))\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def complete(run: Callable[..., Any], tiny: tuple[str, ...]) -> Callable[..., Any]:
    return lambda *arguments: run("complete", "--no-daemon", *arguments, *tiny)


# Where


@pytest.mark.parametrize(
    ("place", "path", "line", "column"),
    [
        ("app.py:12:9", "app.py", 12, 9),
        ("a:b:c.py:1:1", "a:b:c.py", 1, 1),
        ("C:\\code\\app.py:3:4", "C:\\code\\app.py", 3, 4),
        ("dir/app.py:007:1", "dir/app.py", 7, 1),
    ],
)
def test_places(place: str, path: str, line: int, column: int) -> None:
    assert parse_place(place) == (Path(path), line, column)


@pytest.mark.parametrize(
    "place",
    [
        *("app.py", "app.py:1", "app.py:1:", "app.py::1", "app.py:a:1", "app.py:-1:1", "app.py:1:1.0", "", ":1:1"),
        *("app.py:\u0663:1", "app.py: 1:1", f"app.py:{'9' * 5000}:1"),
    ],
)
def test_what_is_no_place(place: str) -> None:
    with pytest.raises(UsageError, match=r"is not FILE:LINE:COL, for example app\.py:12:9"):
        parse_place(place)


@pytest.mark.parametrize(
    ("line", "column", "said"),
    [
        (7, 1, "line 7 is outside the file, whose last line is 6"),
        (0, 1, "line 0 is outside the file, whose last line is 6"),
        (3, 6, "column 6 is outside line 3, whose last column is 5"),
        (3, 0, "column 0 is outside line 3, whose last column is 5"),
    ],
)
def test_a_cursor_outside_of_the_file(line: int, column: int, said: str, file: Path, fails: Callable[..., str]) -> None:
    assert fails(2, "complete", f"{file}:{line}:{column}") == said


# What


def test_files_that_cannot_be_completed(tmp_path: Path, fails: Callable[..., str]) -> None:
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "latin.py").write_bytes("# é\n".encode("latin-1"))
    for name, said in {
        "absent.py": "no such file",
        ".": "not a file",
        "image.png": "a binary file, not text",
        "latin.py": "not UTF-8 at byte 2: convert it first",
    }.items():
        path = tmp_path / name
        assert fails(2, "complete", f"{path}:1:1") == f"{path}: {said}"


def test_a_huge_file_is_not_even_read(tmp_path: Path, fails: Callable[..., str]) -> None:
    path = tmp_path / "huge.py"
    with path.open("wb") as stream:
        stream.truncate(1 << 33)
    assert fails(2, "complete", f"{path}:1:1") == f"{path}: larger than 4 MB: not a source file to complete"


@pytest.mark.skipif(sys.platform == "win32", reason="named pipes")
def test_a_named_pipe_does_not_hang(tmp_path: Path, fails: Callable[..., str]) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert "not a file" in fails(2, "complete", f"{tmp_path / 'pipe.py'}:1:1")


def test_control_characters_of_a_name_do_not_reach_the_terminal(fails: Callable[..., str]) -> None:
    assert "\\x1b[31m" in fails(2, "complete", "\x1b[31m.py:1:1")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text("x")

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"mine\.py: cannot read: Permission denied"):
        read_text(path)


def test_an_empty_file_can_be_completed(tmp_path: Path, complete: Callable[..., Any]) -> None:
    (tmp_path / "empty.py").write_text("")
    assert complete(f"{tmp_path / 'empty.py'}:1:1", "--max-tokens", 4).code == 0


# The answer


def test_the_insertion_is_all_of_stdout(file: Path, complete: Callable[..., Any]) -> None:
    plain = complete(f"{file}:3:5", "--max-tokens", 20)
    assert (plain.code, plain.err) == (0, "")
    assert plain.out
    told = json.loads(complete(f"{file}:3:5", "--max-tokens", 20, "--json").out)
    assert told["insertion"] == plain.out


def test_json_has_the_statistics(file: Path, complete: Callable[..., Any]) -> None:
    told = json.loads(complete(f"{file}:3:5", "--max-tokens", 24, "--json").out)
    assert told.keys() == {
        *("insertion", "finish", "tokens", "steps", "tau", "drafted", "accepted", "accept_by_slot"),
        *("steps_by_drafter", "ms", "tokens_per_second"),
    }
    assert told["finish"] in FINISHES
    assert 1 <= told["tokens"] <= 24
    assert told["steps"] + told["accepted"] == told["tokens"]
    assert sum(told["steps_by_drafter"].values()) == told["steps"]


@pytest.mark.usefixtures("drafting")
@pytest.mark.parametrize("place", ["1:1", "3:5", "5:7", "6:1"])
@pytest.mark.parametrize("sampling", [(), ("--temperature", "0.9", "--seed", "7"), ("--repetition-penalty", "1.3")])
def test_drafting_changes_nothing(
    place: str, sampling: tuple[str, ...], file: Path, complete: Callable[..., Any]
) -> None:
    arguments = (f"{file}:{place}", "--max-tokens", 60, "--json", *sampling)
    drafted, plain = json.loads(complete(*arguments).out), json.loads(complete(*arguments, "--no-draft").out)
    assert drafted["insertion"] == plain["insertion"]
    assert drafted["tokens"] == plain["tokens"]
    assert plain["drafted"] == 0
    assert plain["steps"] == plain["tokens"]


@pytest.mark.usefixtures("drafting")
def test_the_embedded_pair_drafts_and_changes_nothing(file: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", "--no-daemon", f"{file}:3:5", "--max-tokens", 24, "--threads", 1, "--json")
    drafted, plain = run(*arguments), run(*arguments, "--no-draft")
    assert (drafted.code, plain.code, drafted.err) == (0, 0, "")
    assert json.loads(drafted.out)["insertion"] == json.loads(plain.out)["insertion"]


def test_carriage_returns_are_kept_and_change_nothing_else(
    file: Path, tmp_path: Path, complete: Callable[..., Any]
) -> None:
    other = tmp_path / "windows.py"
    other.write_bytes(CODE.replace("\n", "\r\n").encode())
    several = False
    for seed in range(12):
        arguments = ("--max-tokens", 90, "--temperature", 2, "--seed", seed)
        unix, windows = (complete(f"{path}:3:5", *arguments).out for path in (file, other))
        assert windows == unix.replace("\n", "\r\n")
        several |= "\n" in unix
    assert several


def test_line_stops_at_the_end_of_the_line(file: Path, complete: Callable[..., Any]) -> None:
    whole = complete(f"{file}:3:5", "--max-tokens", 90).out
    line = complete(f"{file}:3:5", "--max-tokens", 90, "--line").out
    assert line == whole.partition("\n")[0].rstrip()


def test_a_seed_makes_a_sampled_answer_repeatable(file: Path, complete: Callable[..., Any]) -> None:
    outs = [complete(f"{file}:3:5", "--max-tokens", 30, "--temperature", 1.5, "--seed", seed).out for seed in (1, 1, 2)]
    assert outs[0] == outs[1] != outs[2]


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_never_more_tokens_than_asked_for(limit: int, file: Path, complete: Callable[..., Any]) -> None:
    assert json.loads(complete(f"{file}:3:5", "--max-tokens", limit, "--json").out)["tokens"] <= limit


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--temperature", "-1", "temperature is -1"),
        ("--temperature", "nan", "temperature is nan"),
        ("--top-p", "0", "top_p is 0"),
        ("--top-p", "1.5", "top_p is 1.5"),
        ("--top-k", "-3", "top_k is -3"),
        ("--min-p", "2", "min_p is 2"),
        ("--repetition-penalty", "0", "repetition_penalty is 0"),
        ("--seed", "-1", "seed is -1"),
        ("--max-tokens", "0", "--max-tokens"),
        ("--threads", "-1", "--threads"),
        ("--backend", "rocm", "--backend"),
        ("--top-k", "many", "--top-k"),
        ("--context", "7", "context of 7 tokens"),
        ("--context", "100000", "context of 100000 tokens"),
    ],
)
def test_values_that_make_no_sense(
    option: str, value: str, said: str, file: Path, fails: Callable[..., str], tiny: tuple[str, ...]
) -> None:
    assert said in fails(2, "complete", "--no-daemon", f"{file}:3:5", *tiny, option, value)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_prints_what_there_is(file: Path, complete: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    original, steps = HostPair.step, 0

    def step(self: HostPair, *arguments: Any) -> Step:
        nonlocal steps
        steps += 1
        if steps == 9:
            signal.raise_signal(signal.SIGINT)
        return original(self, *arguments)

    arguments = (f"{file}:3:5", "--no-draft", "--max-tokens", 60)
    whole = complete(*arguments).out
    monkeypatch.setattr(HostPair, "step", step)
    stopped = complete(*arguments)
    assert (stopped.code, steps) == (130, 9)
    assert whole.startswith(stopped.out.rstrip("\ufffd"))
    assert 0 < len(stopped.out) < len(whole)
    steps = 0
    told = complete(*arguments, "--json")
    assert (told.code, json.loads(told.out)["finish"]) == (130, "cancelled")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("where", ["--no-daemon", "--seed=1"])
def test_ctrl_c_ends_loading(where: str, file: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        loaded.append(True)

    monkeypatch.setattr(LoadedPair, "__init__", load)
    monkeypatch.setattr(remote, "connect", load)
    done = run("complete", where, f"{file}:3:5")
    assert (done.code, done.out, loaded) == (130, "", [])


# The context


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    """Far more than 1 024 tokens on both sides of line 1 001."""
    path = tmp_path / "long.py"
    path.write_text("".join(f"value_{i} = {i}\n" for i in range(2000)))
    return path


def test_lines_that_do_not_fit_are_left_out_and_that_is_told(long_file: Path, complete: Callable[..., Any]) -> None:
    arguments = (f"{long_file}:1001:6", "--max-tokens", 30)
    drafted, plain = complete(*arguments), complete(*arguments, "--no-draft")
    assert drafted.code == 0
    assert re.fullmatch(r"The prompt holds lines 9\d\d to 10\d\d: --explain shows it\.\n", drafted.err)
    assert drafted == plain


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


def test_control_characters_of_a_name_stay_out_of_the_table(tmp_path: Path, complete: Callable[..., Any]) -> None:
    (tmp_path / "a\x1b[31m.py").write_text("x = 1\n")
    shown = complete(f"{tmp_path}/a\x1b[31m.py:1:1", "--explain").out
    assert "\x1b" not in shown
    assert "\\x1b[31m.py" in shown


def test_a_line_that_does_not_fit_by_itself_is_cut(tmp_path: Path, complete: Callable[..., Any]) -> None:
    path = tmp_path / "minified.py"
    path.write_text("x = [" + ", ".join(map(str, range(3000))) + "]\n")
    told = json.loads(complete(f"{path}:1:9000", "--explain", "--json").out)
    cut = {part["kind"]: part["cut"] for part in told["prompt"]}
    assert cut == {"prefix": True, "middle": False, "word": False, "suffix": True}


def test_an_answer_gets_half_of_the_context_at_most(file: Path, complete: Callable[..., Any]) -> None:
    told = json.loads(complete(f"{file}:3:5", "--max-tokens", 2000, "--json").out)
    assert told["tokens"] <= 512


def test_a_megabyte_is_cut_in_time(tmp_path: Path, complete: Callable[..., Any]) -> None:
    path = tmp_path / "large.py"
    path.write_text("value = 1\n" * 100_000)
    assert complete(f"{path}:50000:1", "--max-tokens", 4).code == 0


# The shared engine


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
@pytest.mark.usefixtures("short_home")
@pytest.mark.parametrize("options", [(), ("--line",), ("--temperature", "0.9", "--seed", "7"), ("--max-tokens", "2")])
def test_the_engine_gives_the_same_insertion(options: tuple[str, ...], file: Path, run: Callable[..., Any]) -> None:
    file.write_bytes(CODE.replace("\n", "\r\n").encode())
    for place in (f"{file}:3:5", f"{file}:5:7"):
        here = run("complete", place, *options, "--no-daemon", "--threads", 1)
        assert run("complete", place, *options, "--threads", 1) == here
        assert here.code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
@pytest.mark.usefixtures("short_home")
def test_the_engine_explains_as_the_command_does(long_file: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", f"{long_file}:1001:6", "--threads", 1, "--max-tokens", 30)
    while '"word"' not in run(*arguments, "--json", "--explain").out:
        pass  # the vocabulary is read beside the first requests
    assert run(*arguments, "--explain") == run(*arguments, "--explain", "--no-daemon")
    told = json.loads(run(*arguments, "--json").out)
    assert told["finish"] in FINISHES
    assert "prompt" not in told
    assert told["steps"] + told["accepted"] == told["tokens"]


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
def test_an_engine_that_was_killed_is_started_again(file: Path, short_home: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", f"{file}:3:5", "--threads", 1)
    first = run(*arguments)
    (daemon,) = daemons.daemons(short_home)
    daemon.kill()
    daemon.wait(10)
    assert run(*arguments) == first


# Line and column


@given(st.text(alphabet="ab\n\r\x0b\x0c\x1c\x85\u2028é漢\U0001f600 ", max_size=40), st.data())
def test_every_place_of_a_text_is_a_line_and_a_column(text: str, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, len(text)))
    before = text[:offset]
    line, column = before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
    if text[offset - 1 : offset + 1] == "\r\n":
        with pytest.raises(UsageError, match="column"):
            offset_of(text, line, column)  # between the two characters of a line end
    else:
        assert offset_of(text, line, column) == offset


@pytest.mark.parametrize(
    ("text", "line", "column", "offset"),
    [
        ("", 1, 1, 0),
        ("ab", 1, 3, 2),
        ("ab\n", 2, 1, 3),
        ("ab\r\ncd\r\n", 2, 1, 4),
        ("ab\r\ncd\r\n", 1, 3, 2),
        ("a\x0cb\nc", 2, 1, 4),
        ("é漢\n😀x", 2, 2, 4),
    ],
)
def test_offsets(text: str, line: int, column: int, offset: int) -> None:
    assert offset_of(text, line, column) == offset


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ("ab\n", 3, 1, "line 3 is outside the file, whose last line is 2"),
        ("ab\n", 0, 1, "line 0 is outside"),
        ("ab\n", -1, 1, "line -1 is outside"),
        ("ab\n", 1, 4, "column 4 is outside line 1, whose last column is 3"),
        ("ab\r\n", 1, 4, "column 4 is outside line 1, whose last column is 3"),
        ("ab", 1, 0, "column 0 is outside line 1"),
        ("", 1, 2, "column 2 is outside line 1, whose last column is 1"),
    ],
)
def test_offsets_outside_are_named(text: str, line: int, column: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        offset_of(text, line, column)
