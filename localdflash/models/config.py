"""Settings: a flag of a command, else LOCALDFLASH_<TABLE>_<KEY>, else the user's `config.toml`, else the default.

The current folder is never read: a repository must not choose models or servers.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints
from urllib.parse import urlsplit

from msgspec import Meta

from localdflash.base.convert import Text, convert, pattern
from localdflash.base.errors import ModelError, UsageError, did_you_mean
from localdflash.base.files.json_file import replace_file
from localdflash.base.files.paths import config_folder
from localdflash.base.files.toml_file import read_toml
from localdflash.models.backend_names import Backend, RowsMode

KVFormat = Literal["auto", "f16", "int8", "k8v4", "fp8"]
DrafterBits = Literal[8, 4]
KV_FORMATS: tuple[KVFormat, ...] = get_args(KVFormat)
DRAFTER_BITS: tuple[DrafterBits, ...] = get_args(DrafterBits)
DEFAULT = "default"

SettingValues = dict[str, tuple[Any, str]]  # name of a setting -> its value and origin

_ABSOLUTE = r"(?:[/\\~]|[A-Za-z]:[/\\]).*"
_Pair = Annotated[
    str,
    pattern(
        rf"(?:hf|ollama):.+|{_ABSOLUTE}|(?!.*\.gguf\Z)[^/\\]+",
        "an id, an hf: or ollama: name, or an absolute path",
    ),
]
_Url = Annotated[
    str,
    pattern(
        r"(?:(?i:https?)://(?:[\w.-]+|\[[\w:.%]+\])(?::(?!0+(?:/|\Z))\d{1,5})?(?:/[^\s?#]*)?)?",
        "http://HOST:PORT/PATH or https://..., without name, password and query; a key goes into server.key_file",
    ),
]
_Count = Annotated[int, Meta(ge=0, le=10_000_000)]


@dataclass(frozen=True)
class ModelConfig:
    """Pair to run, and its options; 0: the best value for the model and the machine."""

    pair: _Pair = "embedded"  # an id of the registry, hf:owner/name/file.gguf, or an absolute path
    backend: Backend = "auto"
    context: Annotated[int, Meta(ge=0, le=100_000_000)] = 0  # tokens
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    device: Text = "auto"  # auto, cpu, gpu (the best one), or a GPU's number, name or UUID
    gpu_layers: Annotated[int, Meta(ge=-1, le=100_000)] = -1  # target layers on that GPU; -1: as many as fit
    rows: RowsMode = "auto"  # batch widths of llama.cpp; auto: exact if cheap
    drafter_bits: DrafterBits = 8  # bits per weight of a drafter on our engines
    kv: KVFormat = "auto"  # type of the KV cache


@dataclass(frozen=True)
class PairConfig:
    """Pair of the chat or of completions; None: `model.pair` if that is set, else see `registry.defaults`."""

    pair: _Pair | None = None


@dataclass(frozen=True)
class CompletionConfig(PairConfig):
    """Pair of completions, and whether language servers count suggestions for `localdflash stats`."""

    stats: Literal["on", "off"] = "on"


@dataclass(frozen=True)
class ServerConfig:
    """Remote server, and options of the daemon."""

    url: _Url = ""  # OpenAI-compatible server that replaces the daemon
    key_file: Annotated[str, pattern(f"(?:{_ABSOLUTE})?", "an absolute path")] = ""  # holds the bearer key for `url`
    port: Annotated[int, Meta(ge=0, le=65535)] = 0  # TCP port of the daemon; 0: none
    idle_minutes: Annotated[float, Meta(ge=0, le=1_000_000)] = 15.0  # idle time until an automatic daemon exits
    cache_mb: _Count | None = None  # size of each pair's prefix cache; None: by free memory
    disk_cache_mb: _Count = 0  # size of the prefix cache on disk; 0: none
    queue: Annotated[int, Meta(ge=1, le=10_000)] = 64  # maximum number of waiting requests
    unknown_models: Literal["answer", "refuse"] = "answer"  # requests for a model that is no pair's name

    @property
    def key_path(self) -> Path | None:
        """Return the path of the key's file; None if there is no key."""
        return Path(self.key_file) if self.key_file else None


@dataclass(frozen=True)
class Config:
    """All settings. `origins` names for every setting (`model.pair`) its variable, its file, or `default`."""

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
SETTINGS = {  # name of every setting, `table.key` -> its type
    f"{table}.{key}": hint
    for table, kind in _TABLES.items()
    for key, hint in get_type_hints(kind, include_extras=True).items()
}


def config_file() -> Path:
    """Return the path of config.toml, which need not exist."""
    return config_folder() / "config.toml"


def variable(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return "LOCALDFLASH_" + name.replace(".", "_").upper()


def load_config() -> Config:
    """Read all settings; ModelError for an invalid file, UsageError for an invalid variable."""
    return _config_of({**_from_file(), **_from_environment()})


def _config_of(settings: SettingValues) -> Config:
    values = {
        name: os.path.expanduser(value) if isinstance(value, str) else value for name, (value, _) in settings.items()
    }
    tables: dict[str, Any] = {
        table: kind(**{name.split(".")[1]: values[name] for name in values if name.startswith(f"{table}.")})
        for table, kind in _TABLES.items()
    }
    origins = {name: settings[name][1] if name in settings else DEFAULT for name in SETTINGS}
    config = Config(**tables, origins=origins)
    _check_url(config)
    return config


def _from_file() -> SettingValues:
    file = config_file()
    if not (file.is_symlink() or file.exists()):
        return {}
    settings: SettingValues = {}
    for table, keys in read_toml(file).items():
        if table not in _TABLES or not isinstance(keys, dict):
            raise ModelError(f"{file}: {table[:100]!a}: expected only the tables {', '.join(_TABLES)}")
        for key, value in keys.items():
            name = f"{table}.{key}"
            if name not in SETTINGS:
                raise ModelError(f"{file}: {name[:100]!a}: unexpected key{did_you_mean(name, SETTINGS)}")
            settings[name] = (convert(value, SETTINGS[name], f"{file}: {name}"), str(file))
    return settings


def _from_environment() -> SettingValues:
    names = {variable(name): name for name in SETTINGS}
    settings: SettingValues = {}
    for name, value in os.environ.items():
        if name in names:
            settings[names[name]] = (convert(value, SETTINGS[names[name]], name, strict=False, error=UsageError), name)
        elif name.startswith(tuple(variable(f"{table}.") for table in _TABLES)):
            raise UsageError(f"{name}: no such setting{did_you_mean(name, names) or '; unset it'}")
    return settings


def set_value(name: str, value: str) -> object:
    """Write a setting `table.key` to config.toml, and return its value; UsageError if name or value is invalid."""
    if name not in SETTINGS:
        raise UsageError(f"{name}: no such setting{did_you_mean(name, SETTINGS)}")
    load_config()  # raises for a file that is invalid already
    new_value = convert(value, SETTINGS[name], name, strict=False, error=UsageError)
    table, _, key = name.partition(".")
    file = config_file()
    old_text = file.read_text("utf-8-sig") if file.exists() else ""
    new_text = _edit_text(old_text, table, f"{key} = {json.dumps(new_value, ensure_ascii=False)}")
    values = tomllib.loads(old_text)
    values.setdefault(table, {})[key] = new_value
    _config_of({**_from_file(), name: (new_value, str(file)), **_from_environment()})  # raises for a wrong combination
    with suppress(tomllib.TOMLDecodeError):
        if tomllib.loads(new_text) == values:
            replace_file(file.resolve(), new_text)  # follows a symbolic link
            return new_value
    raise UsageError(f"{file}: cannot change how {name} is written here; edit the file")


def _edit_text(text: str, table: str, line: str) -> str:
    """Return the text of the file with one line replaced or added."""
    section = re.search(rf"^\[{table}\].*\n?(?:(?!\[).*\n?)*", text, re.MULTILINE)
    if not section:
        return f"{text.rstrip()}\n\n[{table}]\n{line}\n".lstrip()
    key = line.split(maxsplit=1)[0]
    new_section, count = re.subn(rf"^{key}\s*=.*", lambda _: line, section[0], count=1, flags=re.MULTILINE)
    header, _, rest = section[0].partition("\n")
    return text[: section.start()] + (new_section if count else f"{header}\n{line}\n{rest}") + text[section.end() :]


def _check_url(config: Config) -> None:
    """Raise UsageError for a URL without a valid host and port, and for one that sends the key unencrypted."""
    origin = f"{config.origins['server.url']}: server.url"
    try:
        url = urlsplit(config.server.url)
        _ = url.port
    except ValueError as error:
        raise UsageError(f"{origin}: {error}") from error
    if url.scheme == "http" and config.server.key_file and not is_loopback(url.hostname or ""):
        raise UsageError(
            f"{origin}: the key of server.key_file would be sent unencrypted to"
            f" {url.hostname}; use https, or remove the key"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
