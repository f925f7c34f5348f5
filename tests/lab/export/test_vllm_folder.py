"""A pair written for vLLM, read back by transformers; `make test-nightly` also serves it with vLLM itself."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from localdflash.backends.reference import dflash_files
from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import ModelError, UsageError
from localdflash.engine.host_pair import HostPair
from localdflash.engine.stats import Stats
from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.bench_run import run_prompt
from localdflash.lab.bench.decoding_modes import FullDraftController
from localdflash.lab.export.vllm_folder import write_pair
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.text.tokenizer import Tokenizer

VLLM_PYTHON = Path(__file__).parents[3] / ".venv/vllm/bin/python"
TEXT = "def add(a, b):\n    return a + b  # naïve → 加\n\n\tx = {'key': 1_000}\r\n"
TOKENS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vllm")
    write_pair(local_files(load_registry().resolve("embedded")), folder, None, None)
    return folder


@pytest.fixture(scope="module")
def gguf() -> Path:
    return local_files(load_registry().resolve("embedded")).target


def test_transformers_computes_the_logits_of_the_gguf(folder: Path, gguf: Path) -> None:
    ids = torch.tensor([Tokenizer.load(gguf).encode(TEXT)])
    model = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)
    decoder = load_decoder(gguf)
    with torch.inference_mode():
        theirs = model(ids).logits[0]
        hidden, _ = decoder(ids, torch.arange(ids.shape[1]), causal)
        ours = decoder.logits(hidden)[0]
    assert torch.allclose(theirs, ours, atol=1e-4)
    assert model.generation_config.eos_token_id


def test_transformers_reads_the_same_ids(folder: Path, gguf: Path) -> None:
    theirs, ours = AutoTokenizer.from_pretrained(folder / "target"), Tokenizer.load(gguf)
    ids = ours.encode(TEXT)
    assert theirs.encode(TEXT, add_special_tokens=False) == ids
    assert theirs.decode(ids) == TEXT
    assert theirs.encode("<|im_end|>", add_special_tokens=False) == [ours.special("<|im_end|>")]


def test_the_drafter_is_unchanged(folder: Path) -> None:
    pair = local_files(load_registry().resolve("embedded"))
    assert pair.drafter_gguf
    original, written = dflash_files.load(pair.drafter_gguf), dflash_files.load(folder / "drafter/model.safetensors")
    for name, tensor in original.state_dict().items():
        assert torch.equal(tensor.bfloat16().float(), written.state_dict()[name]), name
    assert written.config.taps == original.config.taps
    assert written.config.mask_token_id == original.config.mask_token_id


def test_a_drafter_that_proposes_from_the_anchor_is_refused(tmp_path: Path, gguf: Path) -> None:
    drafter = Path(str(files("localdflash.models.smollm2") / "drafter.gguf"))
    pair = LocalPair("mine", gguf, drafter, None, None)
    with pytest.raises(ModelError, match="propose from the anchor"):
        write_pair(pair, tmp_path / "out", None, None)
    assert not (tmp_path / "out").exists()


def test_draft_tokens_need_a_drafter(tmp_path: Path, gguf: Path) -> None:
    with pytest.raises(UsageError, match="--draft-tokens: no drafter is known for 'mine'"):
        write_pair(LocalPair("mine", gguf, None, None, None), tmp_path / "out", 4, None)


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Serve the folders with vLLM, greedily equal only in float32, until the module's tests are done."""
    if not VLLM_PYTHON.exists():
        pytest.skip("vLLM is not installed; `make vllm` installs it")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    speculative = {"method": "dflash", "model": str(folder / "drafter"), "num_speculative_tokens": 7}
    arguments = ["--model", folder / "target", "--host", "127.0.0.1", "--port", port, "--dtype", "float32"]
    arguments += ["--max-num-seqs", 4, "--speculative-config", json.dumps(speculative)]
    arguments += ["--per-request-spec-decode-metrics", "summary"]
    command = [str(word) for word in (VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", *arguments)]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    log = folder / "vllm.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as server,
    ):
        try:
            _wait_until_served(f"http://127.0.0.1:{port}", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def _wait_until_served(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end and server.poll() is None:
        try:
            urlopen(f"{url}/v1/models", timeout=5).close()
            return
        except (URLError, OSError):
            time.sleep(1)
    pytest.fail(f"vLLM does not answer: {log.read_text('utf-8', 'replace')[-3000:]}")


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_vllm_writes_the_same_text_with_as_many_drafts(url: str, folder: Path) -> None:
    with LoadedPair(Options("embedded", backend="torch")) as loaded:
        assert loaded.host_pair
        model = next(drafter for drafter in loaded.host_pair.drafters if drafter.is_model)
        baseline, drafting = (
            HostPair(loaded.host_pair.target),
            HostPair(loaded.host_pair.target, [model], FullDraftController()),
        )
        stats, prompts = Stats(), prompt_set.load(6)
        for prompt in prompts:
            ids = loaded.tokenizer.encode(prompt.prefix or prompt.question)
            ours = run_prompt(baseline, ids, loaded.tokenizer.ends, TOKENS)
            stats.merge(run_prompt(drafting, ids, loaded.tokenizer.ends, TOKENS).stats)
            body = {"prompt": list(ids), "max_tokens": TOKENS, "temperature": 0, "model": str(folder / "target")}
            request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urlopen(request, timeout=300) as response:
                text = json.load(response)["choices"][0]["text"]
            tokens = [token for token in ours.ids if token not in loaded.tokenizer.ends]
            assert text == loaded.tokenizer.spell(tokens).decode("utf-8", "replace"), prompt.id
            baseline.forget()
            drafting.forget()
    # Equal texts: the fewer drafts, the more tokens each gave. Both compute an answer's first token without a draft.
    assert _count_drafts(url) == pytest.approx(stats.steps - len(prompts), rel=0.05)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_chat_reports_the_acceptance_of_vllm(url: str) -> None:
    command = [sys.executable, "-m", "localdflash"]
    subprocess.run([*command, "config", "set", "server.url", url], check=True)
    question = ["chat", "-p", "Write a function that adds two numbers.", "--json"]
    numbers = json.loads(subprocess.run([*command, *question], capture_output=True, check=True, timeout=300).stdout)
    assert 0 < numbers["accepted"] < numbers["drafted"]
    assert numbers["tau"] > 1


def _count_drafts(url: str) -> float:
    """Return how many drafts vLLM has verified, from its metrics."""
    metrics = urlopen(f"{url}/metrics", timeout=30).read().decode()
    found = re.search(r"^vllm:spec_decode_num_drafts_total\{[^}]*\} (\S+)", metrics, re.M)
    assert found
    return float(found[1])
