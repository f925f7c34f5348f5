"""Quality of 8-bit activations: the CPU engine and llama.cpp against float32 on the same weights.

`PYTHONPATH=. python -P lab/scripts/cpu_quality.py --json bench/results/cpu-quality.json --threads 2`. The reference is
the torch decoder, one layer in memory at a time. Held-out code goes through the embedded pair. Random tokens go through
random models of real shapes, which checks the code but says little about quality.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from localdflash.backends.reference.decoder import Layer, RMSNorm, causal, rotary
from localdflash.backends.reference.gguf_decoder import state_name
from localdflash.base.files.paths import HOME_VARIABLE
from localdflash.base.machine.cores import physical_cores
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Target
from localdflash.lab import result_file
from localdflash.lab.bench import prompt_set
from localdflash.lab.scripts import synthetic
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights import gguf
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.text.tokenizer import Tokenizer

MAX_FILE_TOKENS = 1000
RANDOM_TOKENS = 192
ROWS = 32  # positions per forward pass
TYPES = {"Q8_0": GGMLType.Q8_0, "Q4_0": GGMLType.Q4_0, "Q4_K_M": GGMLType.Q4_K}
Say = Callable[[str], None]
Floats = NDArray[np.float32]


class Reference:
    """Float32 logits of token sequences, computed layer by layer for all sequences."""

    @torch.inference_mode()
    def __init__(self, path: Path, sequences: Sequence[Sequence[int]]) -> None:
        self._header = gguf.read_header(path)
        self._config = c = decoder_config(self._header)
        assert c.qk_norm  # Qwen3: its file has the rows in the decoder's order
        self._names = {state_name(name): name for name in self._header.tensors}
        embedding = self._tensor("embed_tokens.weight")
        states = [embedding[torch.tensor(ids)][None] for ids in sequences]
        for index in range(c.num_hidden_layers):
            layer = self._layer(index)
            for i, x in enumerate(states):
                cos, sin = rotary(torch.arange(x.shape[1]), c.head_dim, c.rope_theta)
                states[i] = layer(x, 0, cos, sin, causal)
        norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        norm.weight.copy_(self._tensor("norm.weight"))
        self._hidden = [norm(x)[0] for x in states]
        self._head = embedding if c.tie_word_embeddings else self._tensor("lm_head.weight")

    def _tensor(self, name: str) -> Tensor:
        return gguf.load_tensor(self._header, self._names[name])

    def _layer(self, index: int) -> Layer:
        with torch.device("meta"):
            layer = Layer(self._config)
        names = layer.state_dict()
        layer.load_state_dict({name: self._tensor(f"layers.{index}.{name}") for name in names}, assign=True)
        return layer

    @torch.inference_mode()
    def logits(self, sequence: int, rows: slice) -> Tensor:
        """Return the logits of some positions of a sequence: [rows, V]."""
        return torch.nn.functional.linear(self._hidden[sequence][rows], self._head)


def decode_logits(target: Target, ids: Sequence[int]) -> Iterator[tuple[slice, Floats]]:
    """Yield a target's logits of a whole sequence, some positions at a time: [rows, V]."""
    target.crop(0)
    for start in range(0, len(ids), ROWS):
        anchor, *rest = ids[start : start + ROWS]
        draft = Draft("none", rest, [1.0] * len(rest))
        yield slice(start, start + len(rest) + 1), target.verify(anchor, draft).logits
        target.keep(len(rest) + 1)


class Difference:
    """Sums, over positions, of the differences between a target's and the reference's distributions."""

    def __init__(self) -> None:
        self.positions = self.predicted = self.agree = 0
        self.divergence = self.error = self.power = self.moved = 0.0
        self.loss = self.reference_loss = 0.0

    def add(self, expected: Tensor, actual: Tensor, following: Sequence[int]) -> None:
        """Count logits [rows, V] of both, and the tokens that follow the rows; the last row of a text has none."""
        ours, theirs = actual.double().log_softmax(-1), expected.double().log_softmax(-1)
        self.positions += len(expected)
        self.agree += int((expected.argmax(-1) == actual.argmax(-1)).sum())
        self.divergence += float((theirs.exp() * (theirs - ours)).sum())
        centred = expected.double() - expected.double().mean(-1, keepdim=True)
        drift = (actual - expected).double()
        self.error += float((drift - drift.mean(-1, keepdim=True)).square().sum())
        self.power += float(centred.square().sum())
        indices = (torch.arange(len(following)), torch.tensor(following, dtype=torch.long))
        self.predicted += len(following)
        self.loss -= float(ours[indices].sum())
        self.reference_loss -= float(theirs[indices].sum())
        self.moved += float((ours[indices] - theirs[indices]).abs().sum())

    def report(self, reference_name: str = "float32") -> dict[str, Any]:
        """Return the means: losses in nats per token, and the error of the logits relative to their spread."""
        loss, reference = self.loss / self.predicted, self.reference_loss / self.predicted
        return {
            "positions": self.positions,
            "perplexity": round(math.exp(loss), 5),
            f"perplexity_{reference_name}": round(math.exp(reference), 5),
            f"perplexity_over_{reference_name}": round(math.exp(loss - reference), 6),
            "top1_agreement": round(self.agree / self.positions, 5),
            "kl_nats": float(f"{self.divergence / self.positions:.3g}"),
            "mean_abs_logprob_change": float(f"{self.moved / self.predicted:.3g}"),
            "relative_rms_of_logits": float(f"{math.sqrt(self.error / self.power):.3g}"),
        }


def compare(target: Target, reference: Reference, sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Compare a target with the reference over whole sequences."""
    total = Difference()
    for number, ids in enumerate(sequences):
        for rows, logits in decode_logits(target, ids):
            following = ids[rows.start + 1 : rows.stop + 1]
            total.add(reference.logits(number, rows), torch.from_numpy(logits.copy()), following)
    return total.report()


def targets(path: Path, context: int, threads: int) -> Iterator[tuple[str, Any]]:
    """Yield the CPU engine, then llama.cpp, one in memory at a time."""
    from localdflash.backends.llamacpp.llama_target import LlamaCppTarget

    with open_cpu_pair(path, context, threads, "f16") as ours:
        yield "cpu", ours.target
    with closing(LlamaCppTarget(path, context, threads)) as target:
        yield "llama.cpp", target


def measure(path: Path, sequences: Sequence[Sequence[int]], threads: int, say: Say) -> dict[str, Any]:
    """Measure all targets on a file."""
    reference, results = Reference(path, sequences), {}
    for name, target in targets(path, max(map(len, sequences)) + ROWS, threads):
        results[name] = compare(target, reference, sequences)
        say(f"{path.stem} {name}: {results[name]}")
    return results


def held_out(tokenizer: Tokenizer, files: int | None) -> list[list[int]]:
    """Return the ids of the start of every held-out file."""
    sources = sorted(prompt_set.FOLDER.glob("*.py"))[:files]
    return [tokenizer.encode(source.read_text(encoding="ascii"))[:MAX_FILE_TOKENS] for source in sources]


def measure_embedded(files: int | None, threads: int, say: Say) -> dict[str, Any]:
    """Measure the embedded pair on held-out code."""
    path = local_files(load_registry().resolve("embedded")).target
    sequences = held_out(Tokenizer.load(path), files)
    limit = decoder_config(gguf.read_header(path)).context_length - ROWS
    sequences = [ids[:limit] for ids in sequences]
    return {"files": len(sequences), **measure(path, sequences, threads, say)}


@contextmanager
def open_cpu_pair(path: Path, context: int, threads: int, kv: str) -> Iterator[HostPair]:
    """Yield a target on the CPU engine, without drafts."""
    from localdflash.loading.backends import load_on

    options = Options(path.stem, "cpu", threads, context, draft=False, kv=kv)
    with closing(load_on("cpu", LocalPair(path.stem, path, None, None, None), options)) as ours:
        assert ours.host_pair
        yield ours.host_pair


def measure_shape(config: DecoderConfig, name: str, kind: str, folder: Path, threads: int, say: Say) -> dict[str, Any]:
    """Measure a random model on random tokens."""
    path = folder / f"{name}-{kind}.gguf"
    synthetic.write_target(path, config, path.stem, TYPES[kind])
    ids = np.random.default_rng(0).integers(0, config.vocab_size, RANDOM_TOKENS).tolist()
    try:
        return {"layers": config.num_hidden_layers, **measure(path, [ids], threads, say)}
    finally:
        path.unlink()


def run(shapes: Sequence[str], files: int | None, layers: int, threads: int, say: Say) -> dict[str, Any]:
    """Measure everything; `layers` limits the layers of a random model, 0 for all."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="localdflash-quality-") as folder:
        os.environ[HOME_VARIABLE] = folder  # the packed random weights must not be kept
        embedded = measure_embedded(files, threads, say)
        random: dict[str, dict[str, Any]] = {}
        for name in shapes:
            config = synthetic.SHAPES[name]
            config = replace(config, num_hidden_layers=min(config.num_hidden_layers, layers or 1000))
            random[name] = {kind: measure_shape(config, name, kind, Path(folder), threads, say) for kind in TYPES}
    return {"threads": threads, "layers_at_most": layers, "embedded": embedded, "random": random}


def main() -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(physical_cores()))
    parser.add_argument(
        "--shape", action="append", choices=list(synthetic.SHAPES), help="only this random model; repeatable"
    )
    parser.add_argument("--layers", type=int, default=0, help="layers of a random model at most")
    parser.add_argument("--files", type=int, help="held-out files")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = run(args.shape or list(synthetic.SHAPES), args.files, args.layers, args.threads, print)
    result_file.write(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
