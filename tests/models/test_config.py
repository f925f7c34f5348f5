"""Settings: precedence of sources, refused values, and the source that each error and value names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.models.backend_names import BACKENDS
from localdflash.models.config import Config, ModelConfig, ServerConfig, config_file, load_config, set_value, variable

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALDFLASH_MODEL_BACKEND")


WHOLE = """
[model]
pair = "hf:a/b/c.gguf"
backend = "cuda"
context = 8192
threads = 4
device = "Vulkan0"
gpu_layers = 12
rows = "exact"
drafter_bits = 4
kv = "int8"

[chat]
pair = "of-the-chat"

[completion]
pair = "~/x.gguf"
stats = "off"

[server]
url = "https://example.org:8000/v1"
key_file = "/keys/example"
port = 8077
idle_minutes = 2.5
cache_mb = 1
disk_cache_mb = 2000
queue = 8
unknown_models = "refuse"
"""
# setting, another value, its spelling in a variable
OTHERS: list[tuple[str, Any, str]] = [
    ("model.pair", "other", "other"),
    ("model.gpu_layers", -1, "-1"),
    ("chat.pair", "ollama:owner/name:8b", "ollama:owner/name:8b"),
    ("server.url", "http://[::1]:1/v1", "http://[::1]:1/v1"),
    ("server.key_file", "", ""),
    ("server.port", 0, "0"),
    ("server.idle_minutes", 1.5, "1.5"),
]
# setting, value in TOML, message
WRONG = [
    ("model.pair", '"\\n"', "expected one line of printable text"),
    ("model.pair", '"models/x.gguf"', "expected an id, an hf: or ollama: name, or an absolute path"),
    ("model.backend", '"CUDA"', f"expected one of {', '.join(BACKENDS)}, found 'CUDA'; did you mean 'cuda'?"),
    ("model.drafter_bits", "5", "expected one of 8, 4, found 5"),
    *(
        ("server.url", repr(url), "expected http://HOST:PORT/PATH or https://..., without name, password and query; a")
        for url in ("ftp://example.org", "http://[::1/", "http://a:0", "http://a/?key=1", "https://me:secret@a/")
    ),
    ("server.url", '"http://[:::]"', "':::' does not appear"),
    ("server.url", '"http://a:65536"', "Port out of range 0-65535"),
    ("server.port", "65536", "expected int <= 65535"),
    ("server.cache_mb", "1.5", "expected int, got float"),
]


@pytest.fixture
def write(home: Path) -> Write:
    """Return a function that writes config.toml."""

    def make(text: str) -> Path:
        file = config_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return make


def value_of(config: Config, name: str) -> Any:
    table, key = name.split(".")
    return getattr(getattr(config, table), key)


def test_config_file_sets_every_setting(write: Write) -> None:
    file = write(WHOLE)
    config = load_config()
    assert config.model == ModelConfig("hf:a/b/c.gguf", "cuda", 8192, 4, "Vulkan0", 12, "exact", 4, "int8")
    assert (config.chat.pair, config.completion.pair) == ("of-the-chat", str(Path.home() / "x.gguf"))
    assert config.server == ServerConfig(
        "https://example.org:8000/v1", "/keys/example", 8077, 2.5, 1, 2000, 8, "refuse"
    )
    assert set(config.origins.values()) == {str(file)}


@pytest.mark.parametrize(("name", "value", "spelled"), OTHERS)
def test_a_variable_wins_over_the_file(
    name: str, value: Any, spelled: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(WHOLE.replace("https://", "http://").replace("example.org", "localhost"))
    before = load_config()
    monkeypatch.setenv(variable(name), spelled)
    config = load_config()
    assert value_of(config, name) == value
    assert config.origins[name] == "LOCALDFLASH_" + name.upper().replace(".", "_")
    for other in config.origins:
        assert other == name or value_of(config, other) == value_of(before, other)


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_value_is_named_with_its_file(name: str, value: str, message: str, write: Write) -> None:
    table, key = name.split(".")
    file = write(f"# mine\n\n[{table}]\n{key} = {value}\n")
    with pytest.raises(LocaldflashError) as raised:
        load_config()
    assert str(raised.value).startswith(f"{file}: {name}: {message}")
    assert "secret" not in str(raised.value)


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_SERVER_ULR", "x")
    with pytest.raises(UsageError, match=r"_ULR: no such setting; did you mean 'LOCALDFLASH_SERVER_URL'\?"):
        load_config()


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("http://127.8.8.8/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://example.org/v1", False),
        ("http://127.0.0.1.example.org/v1", False),
        ("http://0.0.0.0/v1", False),
    ],
)
def test_a_key_never_goes_unencrypted_to_another_machine(
    url: str, fine: bool, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(f"[server]\nkey_file = '/key'\nurl = '{url}'\n")
    if fine:
        assert load_config().server.url == url
        return
    message = "server.url: the key of server.key_file would be sent unencrypted to "
    with pytest.raises(UsageError) as raised:
        load_config()
    assert str(raised.value).startswith(f"{file}: {message}")
    write("[server]\nkey_file = '/key'\n")
    monkeypatch.setenv("LOCALDFLASH_SERVER_URL", url)
    with pytest.raises(UsageError) as raised:
        load_config()
    assert str(raised.value).startswith(f"LOCALDFLASH_SERVER_URL: {message}")


def test_the_working_folder_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.toml", ".localdflash.toml", "localdflash.toml", ".localdflash/config.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("[model]\npair = 'evil'\n")
    monkeypatch.chdir(tmp_path)
    assert load_config().model.pair == "embedded"


# Changing one setting of the file


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '[chat]\npair = "qwen3-4b"\n'),
        (
            "# mine\n[model]\nthreads = 2 # cores\n",
            '# mine\n[model]\nthreads = 2 # cores\n\n[chat]\npair = "qwen3-4b"\n',
        ),
        ('[chat]\npair = "embedded"\n[server]\nport = 1\n', '[chat]\npair = "qwen3-4b"\n[server]\nport = 1\n'),
        ("[chat]\n# here\n[server]\n", '[chat]\npair = "qwen3-4b"\n# here\n[server]\n'),
    ],
)
def test_one_line_changes_and_the_rest_stays(before: str, after: str, write: Write) -> None:
    write(before)
    set_value("chat.pair", "qwen3-4b")
    assert config_file().read_text("utf-8") == after
    assert load_config().chat.pair == "qwen3-4b"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("chat.pairs", "embedded", "did you mean 'chat.pair'?"),
        ("model.threads", "many", "expected int"),
        ("model.backend", "vulkan", "expected one of"),
        ("server.url", "http://a:99999", "Port out of range"),
    ],
)
def test_a_wrong_name_or_value_changes_nothing(name: str, value: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("?", r"\?")):
        set_value(name, value)
    assert not config_file().exists()


def test_a_wrong_combination_changes_nothing() -> None:
    set_value("server.key_file", "/tmp/key")
    with pytest.raises(UsageError, match="would be sent unencrypted to gpubox"):
        set_value("server.url", "http://gpubox:8000")
    assert load_config().server.url == ""


@pytest.mark.parametrize("before", ["[chat\n", 'chat = { pair = "embedded" }\n'])
def test_a_file_of_another_form_is_left_alone(before: str, write: Write) -> None:
    write(before)
    with pytest.raises(LocaldflashError):
        set_value("chat.pair", "qwen3-4b")
    assert config_file().read_text("utf-8") == before
