"""`localdflash config`: show the settings and the source of each, or change one."""

from dataclasses import asdict
from typing import Any

import click

from localdflash.cli.output import print_fields, print_json, print_table, say
from localdflash.models.config import SETTINGS, Config, config_file, load_config, set_value


@click.group()
def command() -> None:
    """Show and change settings: config.toml and LOCALDFLASH_* variables."""


@command.command()
@click.option("--origin", is_flag=True, help="Print the source of each value.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(origin: bool, as_json: bool) -> None:
    """Print all settings."""
    config = load_config()
    tables = _tables(config)
    values = {f"{table}.{key}": _text(value) for table, keys in tables.items() for key, value in keys.items()}
    if as_json:
        print_json(tables | ({"origins": dict(config.origins)} if origin else {}))
    elif origin:
        print_table(("SETTING", "VALUE", "ORIGIN"), ((name, values[name], config.origins[name]) for name in values))
    else:
        print_fields(values.items())


@command.command()
def path() -> None:
    """Print the path of config.toml."""
    print(config_file())


@command.command("set", context_settings={"ignore_unknown_options": True})  # a value may be negative
@click.argument("name", metavar="KEY", shell_complete=lambda *_: list(SETTINGS))
@click.argument("value")
def set_(name: str, value: str) -> None:
    """Change a setting in config.toml, for example `config set chat.pair qwen3-4b`."""
    print(f"{config_file()}: {name} = {_text(set_value(name, value))}")
    if (origin := load_config().origins[name]) != str(config_file()):
        say(f"{origin} is set and overrides it")


def _tables(config: Config) -> dict[str, dict[str, Any]]:
    return {name: asdict(getattr(config, name)) for name in ("model", "chat", "completion", "server")}


def _text(value: object) -> str:
    if value is None:
        return "automatic"
    return "-" if value == "" else str(value)
