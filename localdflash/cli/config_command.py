"""`localdflash config`: the settings in effect, and where each comes from."""

from dataclasses import asdict
from typing import Any

import click

from localdflash.cli.output import print_fields, print_json, print_table
from localdflash.models.config import Config, config_file, load_config, set_value, setting_names


@click.group()
def command() -> None:
    """Show and change settings: config.toml and LOCALDFLASH_* variables."""


@command.command()
@click.option("--origin", is_flag=True, help="Print the source of each value.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(origin: bool, as_json: bool) -> None:
    """Print all settings."""
    config = load_config()
    values = _values(config)
    if as_json:
        document: dict[str, Any] = {}
        for name, value in values.items():
            table, key = name.split(".")
            document.setdefault(table, {})[key] = value
        print_json(document | ({"origins": dict(config.origins)} if origin else {}))
    elif origin:
        rows = ((name, _text(value), config.origins[name]) for name, value in values.items())
        print_table(("SETTING", "VALUE", "ORIGIN"), rows)
    else:
        print_fields((name, _text(value)) for name, value in values.items())


@command.command()
def path() -> None:
    """Print the path of config.toml."""
    print(config_file())


@command.command("set")
@click.argument("name", metavar="KEY", shell_complete=lambda *_: list(setting_names()))
@click.argument("value")
def set_(name: str, value: str) -> None:
    """Change a setting in config.toml, for example `config set chat.pair qwen3-4b`."""
    set_value(name, value)
    print(f"{config_file()}: {name} = {_text(_values(load_config())[name])}")


def _values(config: Config) -> dict[str, Any]:
    """Return every setting by name, as the file would have it."""
    unset = {"server.key_file": "", "server.port": 0}
    tables = {name: asdict(getattr(config, name)) for name in ("model", "chat", "completion", "server")}
    values = {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}
    values |= {name: value for name, value in unset.items() if values[name] is None}
    return values | {"server.key_file": str(values["server.key_file"])}


def _text(value: object) -> str:
    if value is None:
        return "automatic"
    return "-" if value == "" else str(value)
