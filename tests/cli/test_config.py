"""`config show` and `config path`, and that the other commands take their defaults from the settings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from localdflash.cli.options import pair_options
from localdflash.models import config


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALDFLASH_MODEL_BACKEND")


@pytest.fixture
def file() -> Path:
    """config.toml with a pair, a port and a key."""
    path = config.config_file()
    path.parent.mkdir(parents=True)
    path.write_text('[model]\npair = "mine"\n[server]\nport = 8077\nkey_file = "/keys/a"\n')
    return path


def test_show(run: Callable[..., Any], file: Path) -> None:
    done = run("config", "show")
    assert (done.code, done.err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert len(shown) == 18
    assert (shown["chat.pair"], shown["completion.pair"]) == ("automatic", "automatic")
    assert shown["model.pair"] == "mine"
    assert shown["server.url"] == "-"
    assert shown["server.queue"] == "64"


def test_show_with_origins(run: Callable[..., Any], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_MODEL_KV", "fp8")
    lines = run("config", "show", "--origin").out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "ORIGIN"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["model.pair"] == ["mine", f"{file}:2"]
    assert rows["server.port"] == ["8077", f"{file}:4"]
    assert rows["model.kv"] == ["fp8", "LOCALDFLASH_MODEL_KV"]
    assert rows["model.backend"] == ["auto", "default"]


def test_show_as_json(run: Callable[..., Any], file: Path) -> None:
    document = json.loads(run("config", "show", "--json").out)
    assert document["model"]["pair"] == "mine"
    assert document["server"]["port"] == 8077
    assert document["server"]["key_file"] == "/keys/a"
    assert set(document) == {"model", "chat", "completion", "server"}
    document = json.loads(run("config", "show", "--json", "--origin").out)
    assert document["origins"]["server.key_file"] == f"{file}:5"
    assert document["origins"]["server.url"] == "default"


def test_path(run: Callable[..., Any], home: Path) -> None:
    assert run("config", "path").out == f"{home / 'config' / 'config.toml'}\n"
    assert not home.exists()


def test_bad_settings_are_one_line(fails: Callable[..., str], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_SERVER_PORT", "http")
    said = fails(2, "config", "show")
    assert said == "LOCALDFLASH_SERVER_PORT: expected a whole number, found text"
    monkeypatch.delenv("LOCALDFLASH_SERVER_PORT")
    file.write_text("[model]\nkv = 'f\\u001b[31m'\n")
    assert fails(3, "config", "show").startswith(f"{file}:2: ")


@pytest.fixture
def parsed() -> Callable[..., dict[str, Any]]:
    """The pair options that a command gets for these arguments."""

    @click.command()
    @pair_options
    def command(**options: Any) -> dict[str, Any]:
        return options

    def parse(*arguments: str) -> dict[str, Any]:
        options: dict[str, Any] = command.main(arguments, standalone_mode=False)
        return options

    return parse


def test_without_settings_the_options_have_their_defaults(parsed: Callable[..., dict[str, Any]]) -> None:
    assert parsed() == {
        "pair": "embedded",
        "drafter": "",
        "backend": "auto",
        "threads": 0,
        "context": 0,
        "device": "auto",
        "gpu_layers": -1,
        "rows": "auto",
        "kv": "f16",
        "drafter_bits": 8,
        "native_fp4": False,
    }


def test_a_flag_wins_over_a_variable_over_the_file(
    parsed: Callable[..., dict[str, Any]], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parsed()["pair"] == "mine"
    monkeypatch.setenv("LOCALDFLASH_MODEL_PAIR", "of-variable")
    monkeypatch.setenv("LOCALDFLASH_MODEL_DRAFTER_BITS", "4")
    assert (parsed()["pair"], parsed()["drafter_bits"]) == ("of-variable", 4)
    options = parsed("--pair", "of-flag", "--drafter-bits", "8", "--context", "5", "--backend", "torch")
    assert (options["pair"], options["drafter_bits"], options["context"]) == ("of-flag", 8, 5)


def test_help_names_the_settings_and_works_where_they_are_broken(run: Callable[..., Any], file: Path) -> None:
    file.write_text("not toml")
    done = run("complete", "--help")
    assert done.code == 0
    assert "(setting completion.pair, else model.pair, else smollm2-135m-code where it is here)" in " ".join(
        done.out.split()
    )


def test_broken_settings_stop_a_command_that_needs_them(fails: Callable[..., str], file: Path) -> None:
    file.write_text("[model]\nthreads = -1\n")
    said = fails(3, "complete", "--no-daemon", "x.py:1:1")
    assert said == f"{file}:2: model.threads: expected 0 to 1024, found -1"
