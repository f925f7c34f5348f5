"""The CUDA engine's decoder over SmolLM2-135M's real file, references in place of kernels, in float32 on a CPU."""

from dataclasses import replace

import pytest
import torch

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.text.tokenizer import Tokenizer
from tests.backends.cpu.rounded import relative
from tests.support.cuda_pairs import load_on_cpu
from tests.support.smollm2 import FILE, needs_smollm2
from tests.support.tiny_models import SHAPE, write_drafter

pytestmark = [needs_smollm2, pytest.mark.nightly, pytest.mark.timeout(900)]
CONTEXT = 64
PROMPT = "def reverse(text):\n    return text[::-1]\n\n\ndef is_palindrome(text):\n    return"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> CudaPair:
    """The real target; the drafter has random weights."""
    shape = replace(SHAPE, vocab_size=49152, hidden_size=576)
    return load_on_cpu(FILE, write_drafter(tmp_path_factory.mktemp("pair"), shape), context=CONTEXT)


@pytest.fixture(autouse=True)
def _one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable queued steps: the next step would overwrite the logits."""
    monkeypatch.setattr("localdflash.backends.cuda.cuda_pair.MAX_STEPS_IN_FLIGHT", 1)


@pytest.fixture(scope="module")
def reference() -> Decoder:
    return load_decoder(FILE)


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return Tokenizer.load(FILE).encode(PROMPT)


@torch.inference_mode()
def test_logits_are_those_of_the_torch_reference(pair: CudaPair, reference: Decoder, ids: list[int]) -> None:
    """Both compute with the file's exact numbers, so only the order of sums differs."""
    hidden, _ = reference(torch.tensor([ids]), torch.arange(len(ids)), causal, ())
    expected, plain = reference.logits(hidden)[0], pair.with_mode("plain")
    for length in (1, 16, len(ids)):
        plain.forget()
        plain.prefill(ids[:length])
        plain.step(Sampler(SamplingParams(temperature=1.0, seed=1)), 1)
        assert relative(plain.stepper.sampling.logits[0], expected[length - 1]) < 1e-5
