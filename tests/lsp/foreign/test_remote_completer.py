"""The remote server of the settings: detected, lost and found again."""

from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import EngineDisconnect, LocaldflashError, UsageError
from localdflash.lsp.engine_completer import DaemonSource
from localdflash.lsp.foreign import finding as module
from localdflash.lsp.foreign import llama_client as llama_module
from localdflash.lsp.foreign.completion_clients import OllamaClient
from localdflash.lsp.foreign.finding import RemoteCompleter, find_server
from localdflash.lsp.foreign.llama_client import InfillLlama, RawLlama
from localdflash.lsp.foreign.remote_prompt import PrefixSuffixBuilder, PromptBuilder
from localdflash.lsp.lsp_settings import RemoteServer
from localdflash.server.address import Address
from tests.lsp.foreign.made_up import BODY, QWEN_SHOWN, Answer, Said, llama, llama_said, ollama, openai, serving

CHAT = {"template": "{{ .Prompt }}", "details": {"family": "llama"}, "capabilities": ["completion"]}
INSERT = {"template": "<PRE> {{ .Prompt }} <SUF>", "details": {"family": "llama"}, "capabilities": ["insert"]}
PHI = {"<|system|>": 7}
CANNOT = "does not fill in the middle"


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
    ("answers", "kind"),
    [
        (llama(), RawLlama),
        (llama(markers=PHI, infill=Said({"content": ""})), InfillLlama),  # its markers are not in our table
        (llama(blank=" ", infill=Said({"content": ""})), InfillLlama),  # each part of a prompt would begin with a blank
    ],
)
async def test_llama_server_gets_our_prompt_if_its_markers_are_known(answers: dict[str, Answer], kind: type) -> None:
    server = await found(answers)
    assert isinstance(server, kind)
    assert isinstance(server, RawLlama | InfillLlama)
    assert server.model == "Qwen2.5-Coder-1.5B-Q8_0"


async def test_llama_server_that_still_loads_says_so() -> None:
    loading = Said({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, 503)
    error = await refused({"/props": loading, "/ps": loading})
    assert isinstance(error, EngineDisconnect)
    assert str(error).endswith("has no model ready: Loading model")


async def test_a_remote_daemon_is_asked_like_the_local_one() -> None:
    source = await found({"/ps": Said({"pair": "qwen3-8b"})})
    assert isinstance(source, DaemonSource)
    assert source.model == "qwen3-8b"


@pytest.mark.parametrize(
    ("models", "loaded", "model", "expected", "how"),
    [
        ({"llama3": CHAT, "qwen2.5-coder:1.5b": QWEN_SHOWN}, [], "", "qwen2.5-coder:1.5b", PromptBuilder),
        ({"a": QWEN_SHOWN, "b": QWEN_SHOWN}, ["b"], "", "b", PromptBuilder),
        ({"codellama:7b-code": INSERT}, [], "", "codellama:7b-code", PrefixSuffixBuilder),
    ],
)
async def test_ollama_answers_with_the_first_model_that_can(
    models: dict[str, Any], loaded: list[str], model: str, expected: str, how: type
) -> None:
    server = await found(ollama(models=models, loaded=loaded), model)
    assert isinstance(server, OllamaClient)
    assert server.model == expected
    assert type(server._prompt_builder) is how


@pytest.mark.parametrize(("counted", "fits"), [(3, True), (4, True), (21, False)])
async def test_a_model_of_ollama_without_a_template_is_tried_with_the_markers_of_its_family(
    counted: int, fits: bool
) -> None:
    answers = ollama(
        models={"hf.co/x/Qwen2.5-Coder-GGUF": CHAT}, generate=Said({"response": "", "prompt_eval_count": counted})
    )
    if fits:
        assert type((await found(answers))._prompt_builder) is PromptBuilder
    else:
        assert CANNOT in str(await refused(answers))


async def test_ollama_without_a_model_and_without_the_one_asked_for() -> None:
    assert "has no model: run `ollama pull` there" in str(await refused(ollama(models={})))
    assert "has no model nope: run `ollama pull nope` there" in str(await refused(ollama(), "nope"))
    assert "llama3 at" in str(await refused(ollama(models={"llama3": CHAT})))


@pytest.mark.parametrize(
    "answers", [llama(model="zeta-2-Q8_0"), ollama(models={"zeta:7b": QWEN_SHOWN}), openai(models=("zed/zeta-2",))]
)
async def test_models_that_predict_edits_are_refused(answers: dict[str, Answer]) -> None:
    assert CANNOT in str(await refused(answers))


async def test_openai_that_ignores_or_refuses_the_suffix_or_has_no_model_is_refused() -> None:
    assert CANNOT in str(await refused(openai(suffix=False)))
    no_suffix = Said({"error": {"message": "suffix is not currently supported"}}, 400)
    assert CANNOT in str(await refused(openai(completions=no_suffix)))
    assert str(await refused(openai(models=()))).endswith("has no model loaded")


@pytest.mark.parametrize("answers", [llama(), ollama(), openai()])
async def test_a_key_that_is_missing_wrong_or_right(answers: dict[str, Answer]) -> None:
    missing = await refused(answers, key="sesame")
    assert isinstance(missing, UsageError)
    assert "wants a key: put it into a file, and its path into [server] key_file" in str(missing)
    assert "refuses the key that [server] key_file names" in str(await refused(answers, sent_key="open", key="sesame"))
    assert await found(answers, key="sesame")


@pytest.mark.parametrize("answer", [Said(b"<html>"), Said({"models": 1, "data": 2, "pair": 0}), Said({}, 500)])
async def test_other_servers_are_refused(answer: Said) -> None:
    paths = ("/ps", "/props", "/api/version", "/api/tags", "/api/ps", "/api/show", "/v1/models", "/v1/completions")
    assert await refused(dict.fromkeys(paths, answer))


class Client:
    def __init__(self, url: str, key_file: Path | None = None) -> None:
        self.told: list[str] = []
        self.said: list[str] = []
        self.completer = RemoteCompleter(RemoteServer(url, key_file), self.said.append, self.told.append)

    async def ask(self) -> str:
        return "".join([event["text"] async for event in self.completer.complete(BODY)])


async def test_the_server_is_detected_once_and_named_with_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(llama(llama_said("return x\n"))) as server:
        client = Client(server.url + "/v1")
        assert [await client.ask() for _ in range(3)] == ["rn x"] * 3
        assert len(server.bodies("/props")) == 1
        assert await client.completer.model() == f"Qwen2.5-Coder-1.5B-Q8_0 at 127.0.0.1:{server.port}"
        client.completer.close()
        assert (client.told, client.said) == ([], [f"suggestions come from Qwen2.5-Coder-1.5B-Q8_0 at {server.url}"])
        monkeypatch.setattr(module, "is_loopback", lambda host: False)
        remote = Client(server.url)
        await remote.completer.model()
        assert remote.said[0].endswith(f"at {server.url}: the code around the cursor is sent there")
        remote.completer.close()


@pytest.mark.parametrize("later", [openai("rn y\n", models=("new",)), llama(llama_said("return y\n"), model="new")])
async def test_a_server_that_was_started_anew_is_found_again_with_its_new_model(
    later: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_module, "RECHECK_SECONDS", 0.0)

    async with serving(llama(llama_said("return x\n"))) as server:
        client = Client(server.url)
        assert await client.ask() == "rn x"
    async with serving(later, port=server.port):
        assert await client.ask() == "rn y"
        assert await client.completer.model() == f"new at 127.0.0.1:{server.port}"
    assert client.told == []
    client.completer.close()


@pytest.mark.parametrize(("mode", "text", "told"), [(0o600, "rn x", ""), (0o644, "", "readable by other users")])
async def test_the_key_comes_from_a_private_file(tmp_path: Path, mode: int, text: str, told: str) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n")
    key.chmod(mode)
    async with serving(llama(llama_said("return x\n")), key="sesame") as server:
        client = Client(server.url, key)
        assert await client.ask() == text
        assert told in "".join(client.told)
        assert bool(server.asked) == bool(text)
        client.completer.close()
