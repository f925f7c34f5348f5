"""Hugging Face folders: quantized here by the formula for one weight, and run by transformers with what these mean."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from localdflash.cuda.assembly import CudaSettings, load_pair
from localdflash.cuda.checkpoint import CheckpointSource
from localdflash.cuda.checkpoint_config import decoder_config_of_json
from localdflash.cuda.memory import predict_bytes
from localdflash.cuda.ops import REFERENCES
from localdflash.cuda.pair import CudaPair
from localdflash.cuda.stepper import SLACK, Way
from localdflash.cuda.weights import load_target
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import ModelError
from tests.cuda.test_memory import storages
from tests.support.tiny_models import SHAPE, write_drafter

CPU = torch.device("cpu")
VOCABULARY, HIDDEN, HEADS, KV_HEADS, INNER, EXPERTS = 160, 128, 4, 2, 256, 4
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 64,
    "intermediate_size": INNER,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "qwen3_moe": {
        **QWEN3,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
    },
    "llama": {
        **{key: value for key, value in QWEN3.items() if key != "head_dim"},
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64},
        "tie_word_embeddings": True,
    },
}


@dataclass
class Case:
    """The tensors of a checkpoint, those that they stand for, and config.json's `quantization_config`."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    meant: dict[str, Tensor] = field(default_factory=dict)
    quantization: dict[str, Any] | None = None


Packer = Callable[[Case, str, Tensor], None]


def gptq(case: Case, prefix: str, weight: Tensor) -> None:
    """4 bits, groups of 128, symmetric; eight codes in a word, the first one lowest, stored zeros one less."""
    case.quantization = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    n, k = weight.shape
    scales = (weight.view(n, -1, 128).abs().amax(-1) / 7).half()  # [n, groups]
    spread = scales.float().repeat_interleave(128, 1)
    codes = ((weight / spread).round().clamp(-8, 7) + 8).int()
    words = sum(codes.view(n, -1, 8)[..., i].long() << (4 * i) for i in range(8))
    assert isinstance(words, Tensor)
    case.tensors |= {
        f"{prefix}.qweight": words.to(torch.int32).t().contiguous(),
        f"{prefix}.qzeros": torch.full((k // 128, n // 8), 0x77777777, dtype=torch.int32),
        f"{prefix}.scales": scales.t().contiguous(),
        f"{prefix}.g_idx": (torch.arange(k) // 128).int(),
        f"{prefix}.bias": torch.zeros(n, dtype=torch.float16),  # as AutoGPTQ writes it
    }
    case.meant[f"{prefix}.weight"] = (codes - 8) * spread


def fp8(case: Case, prefix: str, weight: Tensor) -> None:
    """compressed-tensors "float-quantized": e4m3 with a scale for every row."""
    case.quantization = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    case.tensors |= {f"{prefix}.weight": codes, f"{prefix}.weight_scale": scale.bfloat16()}
    case.tensors[f"{prefix}.input_scale"] = torch.ones(1)
    case.meant[f"{prefix}.weight"] = codes.float() * scale.bfloat16().float()


def floats(case: Case, prefix: str, weight: Tensor) -> None:
    """bfloat16, which becomes int8 when it is loaded: 255 steps for every 128 weights of a row."""
    weight = weight.bfloat16()
    case.tensors[f"{prefix}.weight"] = weight
    step = weight.float().view(len(weight), -1, 128).abs().amax(-1).repeat_interleave(128, 1) / 127
    case.meant[f"{prefix}.weight"] = (weight.float() / step).round() * step


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every parameter as transformers names it."""
    d, q, kv = 64, config["num_attention_heads"] * 64, config["num_key_value_heads"] * 64
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (VOCABULARY, HIDDEN), "model.norm": (HIDDEN,)}
    if not config["tie_word_embeddings"]:
        found["lm_head"] = (VOCABULARY, HIDDEN)
    for layer in (f"model.layers.{i}" for i in range(config["num_hidden_layers"])):
        found |= {f"{layer}.self_attn.q_proj": (q, HIDDEN), f"{layer}.self_attn.o_proj": (HIDDEN, q)}
        found |= {f"{layer}.self_attn.{name}_proj": (kv, HIDDEN) for name in "kv"}
        found |= {f"{layer}.{name}_layernorm": (HIDDEN,) for name in ("input", "post_attention")}
        if config["model_type"] != "llama":
            found |= {f"{layer}.self_attn.{name}_norm": (d,) for name in "qk"}
        inner = config.get("moe_intermediate_size", INNER)
        for mlp in [f"experts.{i}." for i in range(config.get("num_experts", 0))] or [""]:
            found |= {f"{layer}.mlp.{mlp}{name}_proj": (inner, HIDDEN) for name in ("gate", "up")}
            found[f"{layer}.mlp.{mlp}down_proj"] = (HIDDEN, inner)
        if "num_experts" in config:
            found[f"{layer}.mlp.gate"] = (config["num_experts"], HIDDEN)
    return found


def make(config: dict[str, Any], packer: Packer) -> Case:
    generator, case = torch.Generator().manual_seed(0), Case()
    for prefix, shape in shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1 or prefix.endswith("mlp.gate"):
            exact = (1 + 0.2 * noise if len(shape) == 1 else 0.2 * noise).bfloat16()
            case.tensors[f"{prefix}.weight"], case.meant[f"{prefix}.weight"] = exact, exact.float()
            continue
        (floats if prefix in ("model.embed_tokens", "lm_head") else packer)(case, prefix, 0.15 * noise)
    return case


def write(folder: Path, config: dict[str, Any], case: Case, shards: int = 1) -> Path:
    folder.mkdir()
    quantized = {**config, "quantization_config": case.quantization} if case.quantization else config
    (folder / "config.json").write_text(json.dumps(quantized))
    if shards == 1:
        save_file(case.tensors, folder / "model.safetensors")
        return folder
    weight_map = {name: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, name in enumerate(case.tensors)}
    for shard in set(weight_map.values()):
        save_file({name: t for name, t in case.tensors.items() if weight_map[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def oracle(folder: Path, config: dict[str, Any], case: Case) -> Any:
    """Hugging Face's model with the weights that the checkpoint means."""
    write(folder, config, Case(case.meant))
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def logits(pair: CudaPair, ids: list[int]) -> Tensor:
    pair.forget()
    pair.prefill(ids)
    pair.step(Sampler(SamplingParams(temperature=1.0, seed=1)), 1)
    assert pair.stepper.sampling is not None
    return pair.stepper.sampling.logits[0]


@pytest.mark.parametrize(
    ("model", "packer", "shards"),
    [
        ("qwen3", gptq, 1),
        ("qwen3", fp8, 3),
        ("qwen3_moe", gptq, 2),
        ("qwen3_moe", fp8, 1),
        ("llama", gptq, 1),
        ("llama", floats, 1),
    ],
)
@torch.inference_mode()
def test_logits_are_those_of_transformers(
    model: str, packer: Packer, shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localdflash.cuda.pair.AHEAD", 1)  # the next step would write over the logits
    config = CONFIGS[model]
    case = make(config, packer)
    pair = load_pair(write(tmp_path / "packed", config, case, shards), None, CPU, CudaSettings(context=128), REFERENCES)
    ids = torch.randint(VOCABULARY, (1, 90), generator=torch.Generator().manual_seed(2))
    expected = oracle(tmp_path / "meant", config, case)(ids).logits[0]
    assert float(expected.std()) > 0.5
    for length in (1, 17, 90):
        found = logits(pair, ids[0, :length].tolist())
        torch.testing.assert_close(found, expected[length - 1], atol=1e-4, rtol=1e-4)


def test_biases_of_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of q, k and v; transformers has one on o as well, which must be zero here."""
    monkeypatch.setattr("localdflash.cuda.pair.AHEAD", 1)
    config = {**CONFIGS["llama"], "attention_bias": True, "rope_scaling": None}
    case = make(config, fp8)
    for prefix in [name.removesuffix(".weight") for name in case.meant if ".self_attn." in name]:
        rows = len(case.meant[f"{prefix}.weight"])
        bias = torch.zeros(rows) if prefix.endswith("o_proj") else torch.randn(rows)
        case.tensors[f"{prefix}.bias"] = case.meant[f"{prefix}.bias"] = bias
    pair = load_pair(write(tmp_path / "packed", config, case), None, CPU, CudaSettings(context=128), REFERENCES)
    ids = list(range(20))
    with torch.inference_mode():
        expected = oracle(tmp_path / "meant", config, case)(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(logits(pair, ids), expected, atol=1e-4, rtol=1e-4)


def test_a_drafter_drafts_for_a_folder(tmp_path: Path) -> None:
    config = {**QWEN3, "num_attention_heads": 2, "num_key_value_heads": 1}
    target = write(tmp_path / "packed", config, make(config, gptq))
    pair = load_pair(target, write_drafter(tmp_path / "drafter", SHAPE), CPU, CudaSettings(context=128), REFERENCES)
    ways: tuple[Way, Way] = ("plain", "block")
    texts = []
    for way in ways:
        pair.forget()
        steps = generate(pair.only(way), Request(list(range(30)), 20))
        texts.append([token for step in steps for token in step.tokens])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("packer", [gptq, fp8, floats])
@pytest.mark.parametrize("model", ["qwen3", "qwen3_moe"])
def test_memory_is_planned(model: str, packer: Packer, tmp_path: Path) -> None:
    """The weights themselves; padding of small matrices makes the rest."""
    config, reports = CONFIGS[model], list[tuple[int, int]]()
    folder = write(tmp_path / "packed", config, make(config, packer))
    source = CheckpointSource(folder, CPU, lambda done, total: reports.append((done, total)))
    weights = load_target(source, source.config, 8, llama=False)
    rope = weights.rope.cos.nbytes + weights.rope.sin.nbytes
    assert sum(storages(weights, set())) - rope == pytest.approx(source.nbytes, rel=0.01)
    assert weights.head.nbytes == source.head_nbytes
    assert reports[-1][0] == reports[-1][1]
    assert predict_bytes(source.nbytes, source.config, None, 0, torch.float16).total(128 - SLACK) > source.nbytes


# The configuration


def config_of(**changes: Any) -> Any:
    document = {**CONFIGS[changes.pop("model", "qwen3")], **changes}
    return decoder_config_of_json({k: v for k, v in document.items() if v != "absent"}, "config.json")


def test_factors_of_llama3_are_those_of_transformers() -> None:
    rope = {**LLAMA3, "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, head_dim=128, rope_parameters=rope)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    plain = 500000.0 ** -(torch.arange(0, 128, 2) / 128)
    for form in ({"rope_parameters": rope, "rope_theta": None}, {"rope_scaling": rope, "rope_theta": 500000.0}):
        found = config_of(**{"model": "llama", "head_dim": 128, "rope_scaling": None, **form})
        assert found.rope_theta == 500000.0
        torch.testing.assert_close(torch.tensor(found.rope_factors), plain / scaled, rtol=1e-5, atol=1e-5)


def test_defaults_of_fields() -> None:
    assert config_of(head_dim="absent").head_dim == 128
    assert config_of(model="llama").head_dim == 64
    assert config_of(num_key_value_heads=None).num_key_value_heads == HEADS
    assert config_of(rope_theta="absent", tie_word_embeddings="absent").rope_theta == 1e4
    assert config_of(model="qwen3_moe", num_experts="absent", num_local_experts=8).num_experts == 8
    assert not config_of(model="qwen3_moe", norm_topk_prob="absent").norm_topk_prob
    assert config_of(rope_scaling={"type": "default"}).rope_factors == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gemma3"}, r"'qwen3', 'qwen3_moe', 'llama' models, not 'gemma3'; use a GGUF .*llama\.cpp"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"rope_type 'yarn'; use a GGUF .*llama\.cpp"),
        ({"rope_scaling": {"type": "linear"}}, "does not run type 'linear'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor '0.5'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"model": "qwen3_moe", "decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"model": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"model": "qwen3_moe", "num_experts_per_tok": 5}, "num_experts_per_tok is '5'"),
        ({"hidden_size": "absent"}, "hidden_size is missing; download"),
        ({"hidden_size": True}, "hidden_size is 'True', which makes no sense"),
        ({"vocab_size": -1}, "vocab_size is '-1'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is '3'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is 'nan'"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"rope_scaling": [1]}, "rope_scaling is"),
        ({"rope_scaling": LLAMA3}, "original_max_position_embeddings is missing"),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 64, "high_freq_factor": 1.0}},
            "high_freq_factor is '1.0'",
        ),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        config_of(**changes)
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


# Folders that cannot be used


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("sound") / "folder", QWEN3, make(QWEN3, gptq), shards=2)


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "folder"))


def shard(folder: Path, number: int = 1) -> Path:
    return folder / f"model-{number:05}-of-00002.safetensors"


def change(folder: Path, name: str, tensor: Tensor | None) -> None:
    """Replace, add or remove one tensor."""
    for number in (1, 2):
        tensors = load_file(shard(folder, number))
        if name in tensors or (number == 2 and tensor is not None):
            tensors.pop(name, None)
            save_file(tensors | ({} if tensor is None else {name: tensor}), shard(folder, number))
            return
    raise AssertionError(name)


def change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


UP, NORM = "model.layers.1.mlp.up_proj", "model.layers.2.self_attn.q_norm.weight"


def _other_width(folder: Path) -> None:
    case = Case()
    gptq(case, UP, torch.randn(128, HIDDEN))
    for name, tensor in case.tensors.items():
        change(folder, name, tensor)


def _other_layout(folder: Path) -> None:
    for end in ("qweight", "qzeros", "scales", "g_idx", "bias"):
        change(folder, f"{UP}.{end}", None)
    change(folder, f"{UP}.weight", torch.randn(INNER, HIDDEN))


def _without_files(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: cannot open"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json: cannot be read"),
    "config is no object": (lambda f: (f / "config.json").write_text("[1]"), "expected a JSON object"),
    "no files": (_without_files, r"expected model\.safetensors or model\.safetensors\.index\.json"),
    "no map": (lambda f: change_json(f / "model.safetensors.index.json", weight_map=[]), "weight_map is missing"),
    "a file elsewhere": (
        lambda f: change_json(f / "model.safetensors.index.json", weight_map={"a": "../x.safetensors"}),
        r"'\.\./x\.safetensors' is no safetensors file beside it",
    ),
    "no shard": (lambda f: shard(f, 2).unlink(), r"the shard model-00002-of-00002\.safetensors is missing; download"),
    "a cut shard": (lambda f: shard(f).write_bytes(shard(f).read_bytes()[:-1]), "broken safetensors file"),
    "no matrix": (lambda f: change(f, f"{UP}.qweight", None), rf"tensor {UP}\.weight is missing; download"),
    "no scales": (lambda f: change(f, f"{UP}.scales", None), rf"layer {UP}: tensor scales is missing; download"),
    "no norm": (lambda f: change(f, NORM, None), rf"tensor {NORM} is missing; download"),
    "a short norm": (lambda f: change(f, NORM, torch.ones(32)), rf"{NORM} is \[32\], config\.json says \[64\]"),
    "a norm in int8": (lambda f: change(f, NORM, torch.ones(64).char()), rf"no kernel reads tensor {NORM} of type I8"),
    "a bias": (lambda f: change(f, f"{UP}.bias", torch.ones(INNER)), rf"does not run the bias of {UP}; use a GGUF"),
    "another width": (_other_width, rf"layer {UP} is \[128, 128\], config\.json says \[256, 128\]"),
    "another layout": (_other_layout, rf"{UP} are quantized in different ways and make no single matrix; use a GGUF"),
    "more layers": (lambda f: change_json(f / "config.json", num_hidden_layers=2), "has no place in this kind of"),
    "rotated inputs": (
        lambda f: change(f, f"{UP}.pre_quant_scale", torch.ones(HIDDEN)),
        rf"tensor {UP}\.pre_quant_scale has no place in this kind of decoder; use a GGUF",
    ),
    "an unknown method": (
        lambda f: change_json(f / "config.json", quantization_config={"quant_method": "hqq"}),
        "the quantization method 'hqq' is not supported; use a GGUF",
    ),
    "rotated weights": (
        lambda f: change_json(f / "config.json", quantization_config={"transform_config": {"R1": {}}}),
        "rotated weights",
    ),
    "no quantization": (
        lambda f: change_json(f / "config.json", quantization_config=[1]),
        "quantization_config is no object",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_folders_that_are_refused(name: str, folder: Path) -> None:
    spoil, said = BROKEN[name]
    spoil(folder)
    with pytest.raises(ModelError, match=said) as caught:
        load_pair(folder, None, CPU, CudaSettings(context=128), REFERENCES)
    assert "\n" not in str(caught.value)


def test_old_extras_do_not_matter(folder: Path) -> None:
    change(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(32))
    load_pair(folder, None, CPU, CudaSettings(context=64, draft=False), REFERENCES)
