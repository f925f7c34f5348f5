"""Settings: a flag of a command, else LOCALDFLASH_<TABLE>_<KEY>, else the user's `config.toml`, else the default.

The current folder is never read: a repository must not choose models or servers.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, get_type_hints
from urllib.parse import urlsplit

from localdflash.base.errors import UsageError
from localdflash.base.files.json_file import replace_file
from localdflash.base.files.paths import config_folder
from localdflash.base.files.strict_toml import did_you_mean, integer, key_lines, number, one_of, read_toml, text
from localdflash.models.backend_names import BACKENDS, ROWS_MODES, Backend, RowsMode

KV_FORMATS = ("f16", "int8", "fp8")
DRAFTER_BITS = (8, 4)
DEFAULT = "default"

Convert = Callable[[object], Any]
FoundSettings = dict[str, tuple[Any, str]]  # name of a setting -> its value and origin


def _pair(value: object) -> str:
    """Convert an id, an hf: name or an absolute path."""
    pair = text(value)
    if pair.startswith("hf:") or not (pair.endswith(".gguf") or "/" in pair or "\\" in pair):
        return pair
    return str(_absolute(pair))


def _key_file(value: object) -> Path | None:
    return None if value == "" else _absolute(text(value))


def _absolute(value: str) -> Path:
    path = Path(os.path.expanduser(value))
    if not path.is_absolute():
        raise ValueError(f"expected an absolute path, found {value!r}")
    return path


def _url(value: object) -> str:
    if value == "":
        return ""
    url = text(value)
    parts = urlsplit(url)  # ValueError: not a URL at all
    if parts.username is not None:
        raise ValueError("expected a URL without a name or password; a key goes into server.key_file")
    if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
        raise ValueError(f"expected http://... or https://..., found {url!r}")
    if parts.query or parts.fragment or parts.port == 0:
        raise ValueError(f"expected a URL of scheme, host, port and path, found {url!r}")
    return url


def _port(value: object) -> int | None:
    return integer(0, 65535)(value) or None


def _drafter_bits(value: object) -> int:
    bits = integer(1, 16)(value)
    if bits not in DRAFTER_BITS:
        raise ValueError(f"expected one of {', '.join(map(str, DRAFTER_BITS))}, found {bits}")
    return bits


@dataclass(frozen=True)
class ModelConfig:
    """Pair to run, and its options; 0: the best value for the model and the machine."""

    pair: Annotated[str, _pair] = "embedded"  # an id of the registry, hf:owner/name/file.gguf, or an absolute path
    backend: Annotated[Backend, one_of(*BACKENDS)] = "auto"
    context: Annotated[int, integer(0, 100_000_000)] = 0  # tokens
    threads: Annotated[int, integer(0, 1024)] = 0
    device: Annotated[str, text] = "auto"  # auto, cpu, gpu (the best one), or a GPU's number, name or UUID
    gpu_layers: Annotated[int, integer(-1, 100_000)] = -1  # of the target on that GPU; -1: as many as fit
    rows: Annotated[RowsMode, one_of(*ROWS_MODES)] = "auto"  # batch widths of llama.cpp; auto: exact if cheap
    drafter_bits: Annotated[int, _drafter_bits] = 8  # of a drafter on our engines
    kv: Annotated[str, one_of(*KV_FORMATS)] = "f16"  # type of our own engines' KV cache


@dataclass(frozen=True)
class PairConfig:
    """Pair of the chat or of completions; None: `model.pair` if that is set, else see `registry.defaults`."""

    pair: Annotated[str | None, _pair] = None


@dataclass(frozen=True)
class CompletionConfig(PairConfig):
    """Pair of completions, and whether language servers count suggestions for `localdflash stats`."""

    stats: Annotated[str, one_of("on", "off")] = "on"


@dataclass(frozen=True)
class ServerConfig:
    """Remote server, and options of the daemon."""

    url: Annotated[str, _url] = ""  # of an OpenAI-compatible server that replaces the daemon
    key_file: Annotated[Path | None, _key_file] = None  # file with the bearer key for `url`
    port: Annotated[int | None, _port] = None  # TCP port of the daemon; None, in the file 0: none
    idle_minutes: Annotated[float, number(0, 1_000_000)] = 15.0  # without a request until an automatic daemon exits
    cache_mb: Annotated[int | None, integer(0, 10_000_000)] = None  # of each pair's prefix cache; None: by free memory
    disk_cache_mb: Annotated[int, integer(0, 10_000_000)] = 0  # of the prefix cache on disk; 0: none
    queue: Annotated[int, integer(1, 10_000)] = 64  # maximum number of waiting requests


@dataclass(frozen=True)
class Config:
    """All settings. `origins` names for every setting (`model.pair`) its variable, its file and line, or `default`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    chat: PairConfig = field(default_factory=PairConfig)
    completion: CompletionConfig = field(default_factory=CompletionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    origins: Mapping[str, str] = field(default_factory=dict)


_TABLES: dict[str, Callable[..., Any]] = {
    "model": ModelConfig,
    "chat": PairConfig,
    "completion": CompletionConfig,
    "server": ServerConfig,
}
_SETTINGS: dict[str, dict[str, Convert]] = {
    table: {name: hint.__metadata__[0] for name, hint in get_type_hints(kind, include_extras=True).items()}
    for table, kind in _TABLES.items()
}


def config_file() -> Path:
    """Return the path of config.toml, which need not exist."""
    return config_folder() / "config.toml"


def variable(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return "LOCALDFLASH_" + name.replace(".", "_").upper()


def load_config() -> Config:
    """Read all settings; ModelError for an invalid line of the file, UsageError for an invalid variable."""
    found = {**_from_file(), **_from_environment()}
    tables: dict[str, Any] = {
        table: kind(**{name.split(".")[1]: found[name][0] for name in found if name.startswith(f"{table}.")})
        for table, kind in _TABLES.items()
    }
    origins = {name: found[name][1] if name in found else DEFAULT for name in setting_names()}
    config = Config(**tables, origins=origins)
    _check_key(config)
    return config


def setting_names() -> list[str]:
    """Return the name of every setting, `table.key`."""
    return [f"{table}.{key}" for table, keys in _SETTINGS.items() for key in keys]


def _from_file() -> FoundSettings:
    file = config_file()
    if not (file.is_symlink() or file.exists()):
        return {}
    root = read_toml(file)
    root.reject_unknown_keys(*_SETTINGS)
    found: FoundSettings = {}
    for name, keys in _SETTINGS.items():
        if table := root.table(name):
            table.reject_unknown_keys(*keys)
            for key in filter(table.__contains__, keys):
                found[f"{name}.{key}"] = (table.optional(key, keys[key]), f"{file}:{table.line(key)}")
    return found


def _from_environment() -> FoundSettings:
    known = {variable(name): name for name in setting_names()}
    found: FoundSettings = {}
    for name, value in os.environ.items():
        if name in known:
            found[known[name]] = (_convert_text(known[name], value, name), name)
        elif name.startswith(tuple(variable(f"{table}.") for table in _SETTINGS)):
            near = get_close_matches(name, known, 1)
            raise UsageError(f"{name}: no such setting; " + (f"did you mean {near[0]}?" if near else "unset it"))
    return found


def _convert_text(name: str, value: str, subject: str) -> Any:
    """Return the value of a setting given as text; UsageError, which names `subject`, if it is invalid."""
    table, key = name.split(".")
    try:
        return _convert_spelling(value, _SETTINGS[table][key])
    except ValueError as error:
        raise UsageError(f"{subject}: {error}") from error


def set_value(name: str, value: str) -> None:
    """Write a setting `table.key` to config.toml; UsageError for an unknown setting or an invalid value."""
    if name not in setting_names():
        raise UsageError(f"{name}: no such setting{did_you_mean(name, setting_names())}")
    load_config()  # raises for a file that is invalid already
    converted = _convert_text(name, value, name)
    table, _, key = name.partition(".")
    file = config_file()
    before = file.read_text("utf-8") if file.exists() else ""
    stored = converted if isinstance(converted, int | float) else value
    after = _edit_text(before, table, key, stored)
    values = tomllib.loads(before)
    values.setdefault(table, {})[key] = stored
    if tomllib.loads(after) != values:
        raise UsageError(f"{file}: cannot change how {name} is written here; edit the file")
    replace_file(file.resolve(), after)  # follows a symbolic link


def _edit_text(text: str, table: str, key: str, value: str | float) -> str:
    """Return the text of the file with one line replaced or added."""
    lines, line_of = text.splitlines(), key_lines(text)
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    if index := line_of.get((table, key)):
        lines[index - 1] = line
    elif index := line_of.get((table,)):
        lines.insert(index, line)
    else:
        lines += [f"[{table}]", line] if not lines else ["", f"[{table}]", line]
    return "\n".join(lines) + "\n"


def _convert_spelling(value: str, convert: Convert) -> Any:
    """Convert a text, or the number that it spells."""
    try:
        return convert(value)
    except ValueError:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", value):
            raise
        return convert(float(value) if "." in value else int(value))


def _check_key(config: Config) -> None:
    """Raise UsageError if the bearer key would be sent unencrypted over the network."""
    url = urlsplit(config.server.url)
    if url.scheme == "http" and config.server.key_file and not is_loopback(url.hostname or ""):
        raise UsageError(
            f"{config.origins['server.url']}: server.url: the key of server.key_file would be sent unencrypted to"
            f" {url.hostname}; use https, or remove the key"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
