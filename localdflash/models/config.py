"""Settings: `config.toml` in the user's configuration folder, and environment variables that override it.

A flag of a command comes first, then LOCALDFLASH_<TABLE>_<KEY>, then the file, then the default. No other place is
read, least of all the current folder: a repository must not choose models or servers. Every value remembers where it
comes from.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from localdflash.base.errors import UsageError
from localdflash.base.files.paths import config_folder
from localdflash.base.files.strict_toml import did_you_mean, number, one_of, read_toml, text, whole
from localdflash.models.backend_names import BACKENDS, ROWS_MODES, Backend, RowsMode

KV_FORMATS = ("f16", "int8", "fp8")
DRAFTER_BITS = (8, 4)
DEFAULT = "default"
REMOVED = {"model": ("proposals",)}  # settings of earlier versions: accepted and ignored

Convert = Callable[[object], Any]
Found = dict[str, tuple[Any, str]]  # name of a setting -> its value and where that comes from


@dataclass(frozen=True)
class ModelConfig:
    """Which pair to run, and how. Zeros mean: what the model and the machine suggest."""

    pair: str = "embedded"  # a pair of the registry, hf:owner/name/file.gguf, or the absolute path of a .gguf file
    backend: Backend = "auto"
    context: int = 0  # tokens
    threads: int = 0
    device: str = "auto"  # auto, cpu, gpu (the best one), or one by number, name, UUID or llama.cpp's name
    gpu_layers: int = -1  # of the target on that GPU; -1: what fits
    rows: RowsMode = "auto"  # of llama.cpp: exact or fast; auto: exact where that costs little
    drafter_bits: int = 8  # 8 or 4, of a drafter on our engines
    kv: str = "f16"  # type of our own engines' KV cache


@dataclass(frozen=True)
class ChatConfig:
    """What the chat has of its own."""

    pair: str | None = None  # None: `model.pair` where that is set, else see `localdflash.models.registry.defaults`


@dataclass(frozen=True)
class CompletionConfig:
    """What completions have of their own."""

    pair: str | None = None  # None: as for the chat


@dataclass(frozen=True)
class ServerConfig:
    """Which server to ask, and how the daemon runs."""

    url: str = ""  # an OpenAI-compatible server to ask instead of the daemon
    key_file: Path | None = None  # holds the bearer key for `url`
    port: int | None = None  # where the daemon listens on TCP; None, in the file 0: nowhere
    idle_minutes: float = 15.0  # without a request before a daemon leaves that a client started
    cache_mb: int | None = None  # of prefixes in memory, for each pair; None: an eighth of what is free, 256 to 8192
    disk_cache_mb: int = 0  # of prefixes on disk; 0: none
    queue: int = 64  # requests that may wait


@dataclass(frozen=True)
class Config:
    """All settings. `origins` names for every setting (`model.pair`) its variable, its file and line, or `default`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    chat: ChatConfig = field(default_factory=ChatConfig)
    completion: CompletionConfig = field(default_factory=CompletionConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    origins: Mapping[str, str] = field(default_factory=dict)


def config_file() -> Path:
    """Return the path of the settings; the file need not exist."""
    return config_folder() / "config.toml"


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return "LOCALDFLASH_" + name.replace(".", "_").upper()


def load_config() -> Config:
    """Read all settings; ModelError names file, line and key of a wrong one, UsageError its variable."""
    found = {**_from_file(), **_from_environment()}
    values: dict[str, dict[str, Any]] = {table: {} for table in _SETTINGS}
    for name, (value, _) in found.items():
        table, key = name.split(".")
        values[table][key] = value
    origins = {name: found[name][1] if name in found else DEFAULT for name in setting_names()}
    config = Config(
        ModelConfig(**values["model"]),
        ChatConfig(**values["chat"]),
        CompletionConfig(**values["completion"]),
        ServerConfig(**values["server"]),
        origins,
    )
    _check_key(config)
    return config


def setting_names() -> list[str]:
    """Return the name of every setting, `table.key`."""
    return [f"{table}.{key}" for table, keys in _SETTINGS.items() for key in keys]


def _from_file() -> Found:
    file = config_file()
    if not (file.is_symlink() or file.exists()):
        return {}
    root = read_toml(file)
    root.only(*_SETTINGS)
    found: Found = {}
    for name, keys in _SETTINGS.items():
        if table := root.table(name):
            table.only(*keys, *REMOVED.get(name, ()))
            for key in filter(table.__contains__, REMOVED.get(name, ())):
                _say_once(f"{file}:{table.line(key)}: {name}.{key}: no longer used; remove it")
            for key in filter(table.__contains__, keys):
                found[f"{name}.{key}"] = (table.optional(key, keys[key]), f"{file}:{table.line(key)}")
    return found


def _from_environment() -> Found:
    known = {variable(name): name for name in setting_names()}
    removed = {variable(f"{table}.{key}") for table, keys in REMOVED.items() for key in keys}
    found: Found = {}
    for name, value in os.environ.items():
        if name in removed:
            _say_once(f"{name}: no longer used; unset it")
        elif name in known:
            table, key = known[name].split(".")
            try:
                found[known[name]] = (_converted(value, _SETTINGS[table][key]), name)
            except ValueError as error:
                raise UsageError(f"{name}: {error}") from error
        elif name.startswith(tuple(variable(f"{table}.") for table in _SETTINGS)):
            near = get_close_matches(name, known, 1)
            raise UsageError(f"{name}: no such setting; " + (f"did you mean {near[0]}?" if near else "unset it"))
    return found


@cache
def _say_once(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def convert_value(name: str, value: str) -> Any:
    """Return the value of a setting that was given as text; UsageError if there is no such setting or value."""
    table, _, key = name.partition(".")
    if key not in _SETTINGS.get(table, {}):
        raise UsageError(f"{name}: no such setting{did_you_mean(name, setting_names())}")
    try:
        return _converted(value, _SETTINGS[table][key])
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def _converted(value: str, convert: Convert) -> Any:
    """Return the text, or the number that it spells if the setting is not a text."""
    try:
        return convert(value)
    except ValueError:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", value):
            raise
        return convert(float(value) if "." in value else int(value))


def _check_key(config: Config) -> None:
    """Refuse to send a bearer key unencrypted over the network."""
    url = urlsplit(config.server.url)
    if url.scheme == "http" and config.server.key_file and not is_loopback(url.hostname or ""):
        raise UsageError(
            f"{config.origins['server.url']}: server.url: the key of server.key_file would go unencrypted to"
            f" {url.hostname}; use https, or leave out the key"
        )


def is_loopback(host: str) -> bool:
    """Return whether what is sent to this host stays on this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _pair(value: object) -> str:
    """Return an id or an hf: name as it is; a path only if it means the same file in every folder."""
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
    return whole(0, 65535)(value) or None


def _drafter_bits(value: object) -> int:
    bits = whole(1, 16)(value)
    if bits not in DRAFTER_BITS:
        raise ValueError(f"expected one of {', '.join(map(str, DRAFTER_BITS))}, found {bits}")
    return bits


_SETTINGS: dict[str, dict[str, Convert]] = {
    "model": {
        "pair": _pair,
        "backend": one_of(*BACKENDS),
        "context": whole(0, 100_000_000),
        "threads": whole(0, 1024),
        "device": text,
        "gpu_layers": whole(-1, 100_000),
        "rows": one_of(*ROWS_MODES),
        "drafter_bits": _drafter_bits,
        "kv": one_of(*KV_FORMATS),
    },
    "chat": {"pair": _pair},
    "completion": {"pair": _pair},
    "server": {
        "url": _url,
        "key_file": _key_file,
        "port": _port,
        "idle_minutes": number(0, 1_000_000),
        "cache_mb": whole(0, 10_000_000),
        "disk_cache_mb": whole(0, 10_000_000),
        "queue": whole(1, 10_000),
    },
}
