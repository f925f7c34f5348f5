"""`config show` and `config path`; defaults of the other commands come from the settings."""

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
    """Write config.toml with a pair, a port and a key."""
    path = config.config_file()
    path.parent.mkdir(parents=True)
    path.write_text('[model]\npair = "mine"\n[server]\nport = 8077\nkey_file = "/keys/a"\n')
    return path


def test_config_show(run: Callable[..., Any], file: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert run("config", "path").out == f"{home / 'config' / 'config.toml'}\n"
    monkeypatch.setenv("LOCALDFLASH_MODEL_KV", "fp8")
    done = run("config", "show")
    assert (done.code, done.err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert len(shown) == 20
    assert (shown["chat.pair"], shown["completion.pair"], shown["model.pair"]) == ("automatic", "automatic", "mine")
    assert (shown["server.url"], shown["server.queue"], shown["model.kv"]) == ("-", "64", "fp8")
    header, *lines = run("config", "show", "--origin").out.splitlines()
    assert header.split() == ["SETTING", "VALUE", "ORIGIN"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["model.pair"] == ["mine", str(file)]
    assert rows["model.kv"] == ["fp8", "LOCALDFLASH_MODEL_KV"]
    assert rows["model.backend"] == ["auto", "default"]
    document = json.loads(run("config", "show", "--json").out)
    assert (document["server"]["port"], document["server"]["key_file"]) == (8077, "/keys/a")
    assert set(document) == {"model", "chat", "completion", "server"}
    document = json.loads(run("config", "show", "--json", "--origin").out)
    assert document["origins"]["server.key_file"] == str(file)


def test_a_flag_wins_over_a_variable_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @pair_options
    def command(**options: Any) -> dict[str, Any]:
        return options

    def parsed(*arguments: str) -> Any:
        return command.main(arguments, standalone_mode=False)

    assert parsed()["pair"] == "mine"
    monkeypatch.setenv("LOCALDFLASH_MODEL_PAIR", "of-variable")
    monkeypatch.setenv("LOCALDFLASH_MODEL_DRAFTER_BITS", "4")
    assert (parsed()["pair"], parsed()["drafter_bits"]) == ("of-variable", 4)
    options = parsed("--pair", "of-flag", "--drafter-bits", "8", "--context", "5", "--backend", "torch")
    assert (options["pair"], options["drafter_bits"], options["context"]) == ("of-flag", 8, 5)


def test_help_names_settings_despite_a_broken_config_file(run: Callable[..., Any], file: Path) -> None:
    file.write_text("not toml")
    done = run("complete", "--help")
    assert done.code == 0
    assert all(name in done.out for name in ("completion.pair", "model.pair", "smollm2-135m-code", "model.threads"))


def test_set_takes_a_negative_value(run: Callable[..., Any]) -> None:
    done = run("config", "set", "model.gpu_layers", "-1")
    assert (done.code, done.out, done.err) == (0, f"{config.config_file()}: model.gpu_layers = -1\n", "")


def test_set_prints_the_value_that_it_wrote(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    file = config.config_file()
    monkeypatch.setenv("LOCALDFLASH_MODEL_PAIR", "of-variable")
    done = run("config", "set", "model.pair", "mine")
    assert (done.code, done.out) == (0, f"{file}: model.pair = mine\n")
    assert done.err == "LOCALDFLASH_MODEL_PAIR is set and overrides it\n"
