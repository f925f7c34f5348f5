"""The remote server of the settings: detected, lost and found again."""

from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import EngineDisconnect, LocaldflashError, UsageError
from localdflash.lsp.engine_completer import DaemonSource
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.lsp.remote import remote_completer as module
from localdflash.lsp.remote import remote_source
from localdflash.lsp.remote.remote_completer import RemoteCompleter, find_server
from localdflash.lsp.remote.remote_source import RemoteSource
from localdflash.server.address import Address
from tests.lsp.remote.made_up import BODY, CODER, QWEN, Answer, Said, completions, llama, ollama, serving, vllm

CANNOT = "does not fill in the middle"
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


async def found(answers: dict[str, Answer], model: str = "", key: str = "") -> Any:
    async with serving(answers, key) as server:
        source = await find_server(server.address, model)
        source.close()
        return source


async def refused(
    answers: dict[str, Answer], model: str = "", sent_key: str | None = None, key: str = ""
) -> LocaldflashError:
    async with serving(answers, key) as server:
        with pytest.raises(LocaldflashError) as raised:
            await find_server(Address.of_url(server.url, sent_key or ""), model)
    assert "\n" not in str(raised.value)
    assert "http://127.0.0.1:" in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("answers", "model", "form"),
    [
        (vllm(), CODER, "qwen"),
        (vllm(model="ibm/granite-4.0", markers=QWEN), "ibm/granite-4.0", "granite4"),
        (llama(), "Qwen2.5-Coder-1.5B-Q8_0", "qwen"),
        (llama(model=r"C:\models\model.gguf"), "model", "qwen"),  # the only model is tried with all markers
        (llama(model="a", markers=(*QWEN, "<|mask|>")), "a", "localdflash"),
        (llama(model="codeqwen", markers=STARCODER), "codeqwen", "starcoder"),
        (llama(model="starcoder2", markers=STARCODER, template="b"), "starcoder2", "starcoder2"),  # BOS comes first
        (ollama(), CODER, None),
        (ollama(inserts=("codellama:7b-code",), models=("llama3", "codellama:7b-code")), "codellama:7b-code", None),
        (completions(models=("a", "b-coder"), markers=(), suffix="counted"), "b-coder", None),
    ],
)
async def test_our_prompt_if_the_markers_are_tokens_and_else_the_suffix(
    answers: dict[str, Answer], model: str, form: str | None
) -> None:
    source = await found(answers)
    assert isinstance(source, RemoteSource)
    assert source.model == model
    assert (source.prompt.form.name if source.prompt.form else None) == form


async def test_a_server_that_still_loads_says_so() -> None:
    loading = Said({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, 503)
    for path in ("/ps", "/v1/completions"):
        error = await refused({**llama(), path: loading})
        assert isinstance(error, EngineDisconnect)
        assert str(error).endswith("has no model ready: Loading model")


async def test_a_remote_daemon_is_asked_like_the_local_one() -> None:
    source = await found({"/ps": Said({"pair": "qwen3-8b"})})
    assert isinstance(source, DaemonSource)
    assert source.model == "qwen3-8b"


async def test_models_that_cannot_infill_are_refused() -> None:
    assert CANNOT in str(await refused(vllm(model="zed/zeta-2")))  # predicts edits
    assert CANNOT in str(await refused(vllm(markers=())))
    assert CANNOT in str(await refused(vllm(template="chat")))
    assert CANNOT in str(await refused(completions(markers=(), suffix="ignored")))
    assert "llama3 at http://127.0.0.1:" in str(await refused(ollama(inserts=(), models=("llama3",))))
    names = [f"chat-{number}" for number in range(9)]
    assert "chat-0, chat-1, chat-2, ... at" in str(await refused(ollama(inserts=(), models=names)))


async def test_a_missing_model_is_named_with_those_that_are_there() -> None:
    assert "has no model: load one there" in str(await refused(completions(models=())))
    assert f"cannot use the model nope; it has {CODER}" in str(await refused(ollama(), "nope"))
    assert (await found(completions(models=("a", "b"), suffix="counted"), "b")).model == "b"


@pytest.mark.parametrize("answers", [llama(), ollama(), {"/v1/completions": vllm()["/v1/completions"]}])
async def test_a_key_that_is_missing_wrong_or_right(answers: dict[str, Answer]) -> None:
    missing = await refused(answers, key="sesame")
    assert isinstance(missing, UsageError)
    assert "needs a key; put it into a file, and its path into server.key_file" in str(missing)
    refusal = await refused(answers, sent_key="open", key="sesame")
    assert "refused the key in the file that server.key_file names" in str(refusal)
    assert await found(answers, CODER, key="sesame")


@pytest.mark.parametrize("answer", [Said(b"<html>"), Said({"models": 1, "data": 2, "pair": 0}), Said({}, 500)])
async def test_other_servers_are_refused(answer: Said) -> None:
    assert await refused(dict.fromkeys(("/ps", "/v1/models", "/v1/completions"), answer))


class Client:
    def __init__(self, url: str, key_file: Path | None = None) -> None:
        self.told: list[str] = []
        self.said: list[str] = []
        self.completer = RemoteCompleter(RemoteServer(url, key_file), self.said.append, self.told.append)

    async def ask(self) -> str:
        return "".join([event["text"] async for event in self.completer.complete(BODY)])


async def test_the_server_is_detected_once_and_named_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(llama("rn x\n")) as server:
        client = Client(server.url + "/v1")
        assert [await client.ask() for _ in range(3)] == ["rn x"] * 3
        assert len(server.bodies("/v1/models")) == 1
        assert await client.completer.model() == f"Qwen2.5-Coder-1.5B-Q8_0 at 127.0.0.1:{server.port}"
        client.completer.close()
        assert (client.told, client.said) == ([], [f"suggestions come from Qwen2.5-Coder-1.5B-Q8_0 at {server.url}"])
        monkeypatch.setattr(module, "is_loopback", lambda host: False)
        remote = Client(server.url)
        await remote.completer.model()
        assert remote.said[0].endswith(f"at {server.url}: the code around the cursor is sent there")
        remote.completer.close()


@pytest.mark.parametrize("later", [vllm("rn y\n", model="new-qwen"), llama("rn y\n", model="new-qwen")])
async def test_a_server_that_was_started_anew_is_found_again_with_its_new_model(
    later: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_source, "RECHECK_SECONDS", 0.0)
    async with serving(llama("rn x\n")) as server:
        client = Client(server.url)
        assert await client.ask() == "rn x"
    async with serving(later, port=server.port):
        assert await client.ask() == "rn y"
        assert await client.completer.model() == f"new-qwen at 127.0.0.1:{server.port}"
    assert client.told == []
    client.completer.close()


@pytest.mark.parametrize(("mode", "text", "told"), [(0o600, "rn x", ""), (0o644, "", "readable by other users")])
async def test_the_key_comes_from_a_private_file(tmp_path: Path, mode: int, text: str, told: str) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    key.chmod(mode)
    async with serving(vllm("rn x\n"), key="sesame") as server:
        client = Client(server.url, key)
        assert await client.ask() == text
        assert told in "".join(client.told)
        assert bool(server.asked) == bool(text)
        client.completer.close()
