"""Placement of a pair on a GPU with little memory, by made-up sizes and by file headers."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from localdflash.backends.llamacpp import llama_library, llama_sizes, placing
from localdflash.backends.llamacpp.llama_sizes import (
    LlamaCppSizes,
    ReportedSizes,
    cache_share,
    measured_parts,
    parse_size_lines,
    split_weight_bytes,
)
from localdflash.backends.llamacpp.placement import ALL_LAYERS, MARGIN, PROCESSOR, Device, Placement
from localdflash.backends.llamacpp.placing import choose_placement, plan_placement
from localdflash.base.errors import ModelError, OutOfMemory
from localdflash.base.machine import hardware as machine
from localdflash.loading.plan.here import bytes_per_token
from localdflash.loading.plan.planner import Plan, make_plan
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import NO_DRAFTER, UNCHANGED, MemoryBudget
from localdflash.models.memory.parts import (
    DRAFTER,
    IN_MEMORY,
    SCRATCH,
    TARGET,
    TARGET_KV,
    Parts,
    split_host_parts,
    total,
)
from localdflash.models.registry.registry import MODELS_FOLDER
from localdflash.models.weights.gguf import read_header
from tests.support.random_models import Shape, write, write_header_alone

MB = 10**6
GPU = Device("Vulkan0", "a card", False, 8000 * MB, 8000 * MB)
SMALL = Shape("Q8_0", 256, 4, 4, 2, 512, 8192)
MIXTURE = Shape("Q8_0", 256, 4, 4, 2, 128, 8192, experts=4, used=2)


@dataclass(frozen=True)
class Layered:
    """Ten blocks of 100 MB (60 MB experts), 0.01 MB per token and block, a head of 50 MB, a drafter of 80 MB."""

    placement: Placement
    trained: int = 16384
    drafters: tuple[str, ...] = (UNCHANGED, NO_DRAFTER)

    def parts(self, context: int, drafter: str) -> Parts:
        layers = self.placement.layers
        there = (layers - 1) * 100 + 50 - len(self.placement.experts) * 60
        cache = (layers - 1) * context // 100
        parts = {TARGET: there * MB, TARGET_KV: cache * MB, DRAFTER: 80 * MB * (drafter != NO_DRAFTER)}
        return {**parts, TARGET + IN_MEMORY: (1050 - there) * MB}


def steps(needed: int, mixture: bool) -> list[Placement]:
    on_gpu = [Placement(GPU, 11, range(count)) for count in range(11 if mixture else 1)]
    return on_gpu + [Placement(GPU, n, range(11 - n, 10) if mixture else range(0)) for n in range(10, needed - 1, -1)]


def budget(megabytes: int) -> MemoryBudget:
    return MemoryBudget((megabytes + 5) * MB, 5 * MB, "memory of Vulkan0", MemoryBudget(100_000 * MB, 0, "memory"))


@pytest.mark.parametrize(
    ("free", "mixture", "layers", "experts", "drafter"),
    [
        (1050 + 400 + 80, True, 11, 0, UNCHANGED),
        (1050 + 400 + 80 - 1, True, 11, 1, UNCHANGED),
        (1050 + 400 + 80 - 600, True, 11, 10, UNCHANGED),
        (1050 + 400 + 80 - 601, True, 10, 9, UNCHANGED),
        (1050 + 400 + 80 - 1, False, 10, 0, UNCHANGED),
        (50 + 4 * 140 + 80, False, 5, 0, UNCHANGED),
        (50 + 4 * 140 + 79, False, 11 - 6, 0, NO_DRAFTER),
    ],
)
def test_experts_go_first_then_layers_then_the_drafter(
    free: int, mixture: bool, layers: int, experts: int, drafter: str
) -> None:
    placed = choose_placement(Layered, steps(5, mixture), budget(free), 4000)
    assert placed.fit
    found = (placed.placement.layers, len(placed.placement.experts), placed.fit.drafter)
    assert found == (layers, experts, drafter)
    assert (placed.fit.notice == "") == (layers == 11 and experts == 0)
    if layers < 11:
        assert f"{layers} of 11 layers are on the GPU" in placed.fit.notice
    if drafter == NO_DRAFTER:
        assert "the drafter was left out" in placed.fit.notice


def test_remaining_memory_goes_to_the_context_or_error_has_numbers() -> None:
    placed = choose_placement(Layered, steps(5, False), budget(1050 + 80 + 1000), 0)
    assert placed.fit
    assert (placed.placement.layers, placed.fit.context) == (11, 9984)
    assert "9984 of 16384 tokens" in placed.fit.notice
    with pytest.raises(OutOfMemory, match=r"5 of 11 layers and a context of 4000 tokens need 615.0 MB .* Vulkan0 are"):
        choose_placement(Layered, steps(5, False), budget(50 + 4 * 140 - 1), 4000)


def test_roomy_pair_is_entirely_on_the_gpu_or_refused() -> None:
    needed = 1050 + 819 + 80
    placed = choose_placement(Layered, steps(1, True), budget(needed), 0, can_evict=True)
    assert placed.fit
    assert (placed.placement.layers, placed.fit.drafter, placed.fit.context) == (11, UNCHANGED, 8192)
    with pytest.raises(OutOfMemory, match="all 11 layers and a context of 8192 tokens need"):
        choose_placement(Layered, steps(1, True), budget(needed - 1), 0, can_evict=True)
    assert choose_placement(Layered, steps(1, True), budget(needed - 1), 0).fit, "it fits, but is cramped"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("dense") / "model.gguf", SMALL)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("mixture") / "model.gguf", MIXTURE)


def test_sizes_from_headers(dense: Path, mixture: Path) -> None:
    header, of_mixture = read_header(dense), read_header(mixture)
    sizes = {name: info.nbytes for name, info in header.tensors.items()}
    table, everything = sizes["token_embd.weight"], sum(sizes.values())
    last = sum(size for name, size in sizes.items() if name.startswith("blk.3."))
    assert split_weight_bytes(header, PROCESSOR) == (0, everything)
    assert split_weight_bytes(header, Placement(GPU, 5)) == (everything, table)  # the embedding is also the head
    head = sizes["output_norm.weight"]
    assert split_weight_bytes(header, Placement(GPU, 2)) == (last + head + table, everything - last - head)
    assert [cache_share(header, Placement(GPU, layers)) for layers in (0, 1, 3, 5)] == [0, 0, 0.5, 1]
    experts = sum(info.nbytes for name, info in of_mixture.tensors.items() if "_exps" in name)
    there, beside = split_weight_bytes(of_mixture, Placement(GPU, ALL_LAYERS))
    assert split_weight_bytes(of_mixture, Placement(GPU, ALL_LAYERS, range(1, 3))) == (
        there - experts // 2,
        beside + experts // 2,
    )


def test_gpu_lacks_a_kv_cache_of_two_types(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "choose_gpu", lambda _: GPU)
    monkeypatch.setattr(placing, "LlamaCppSizes", OnProcessor)
    placed = plan_placement(dense, None, Options(kv="k8v4"))
    assert placed.placement == PROCESSOR
    assert "--kv k8v4: llama.cpp has it only on the processor" in placed.notice
    with pytest.raises(ModelError, match="use --kv int8"):
        plan_placement(dense, None, Options(kv="k8v4", device="gpu"))


def test_full_gpu_puts_the_pair_on_the_processor(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Device("Vulkan0", "a card", False, 1000, 8000 * MB)
    monkeypatch.setattr(llama_library, "devices", lambda: [full])
    monkeypatch.setattr(placing, "devices", lambda: [full])
    monkeypatch.setattr(placing, "LlamaCppSizes", OnProcessor)
    placed = plan_placement(dense, None, Options(backend="llama.cpp"))
    assert placed.placement == PROCESSOR
    assert placed.notice.startswith("llama.cpp runs on the processor: 3 of 5 layers and a context of 4096 tokens")
    with pytest.raises(OutOfMemory):
        plan_placement(dense, None, Options(device="gpu"))


class OnProcessor(LlamaCppSizes):
    """Sizes planned without a GPU, but counted as on a GPU."""

    def __init__(self, target: Path, drafter: Path | None, placement: Placement = PROCESSOR, kv: str = "auto") -> None:
        super().__init__(target, drafter, kv=kv)
        self._placement = placement


def test_plan_of_a_mixture_says_where_its_experts_are_and_what_the_gpu_reads(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = read_header(mixture)
    experts = sum(info.nbytes for name, info in header.tensors.items() if name.startswith("blk.0.") and "_exps" in name)
    with OnProcessor(mixture, None, Placement(GPU, 5)) as sizes:
        on_gpu, _ = split_host_parts(sizes.parts(1024, NO_DRAFTER))
    monkeypatch.setattr(machine, "bandwidth", lambda: 50.0)
    for module in (llama_sizes, placing):
        monkeypatch.setattr(module, "LlamaCppSizes", OnProcessor)

    def plan_with(free: int) -> Plan:
        card = Device("Vulkan0", "a card", False, free, free)
        for module in (llama_library, placing):
            monkeypatch.setattr(module, "devices", lambda: [card])
        return make_plan(str(mixture), 1024, "llama.cpp", "gpu")

    plan = plan_with(total(on_gpu) + MARGIN - experts - 1)
    assert "the experts of 2 of 4 layers are in memory" in plan.verdict
    speed = plan.speed
    assert speed.bytes_per_token == experts  # two of four experts of two layers
    assert speed.bytes_on_gpu == bytes_per_token(header) - experts
    assert speed.plain == pytest.approx(50e9 / experts)
    whole = plan_with(8000 * MB).speed
    assert (whole.plain, whole.bytes_per_token, whole.bytes_on_gpu) == (None, 0, bytes_per_token(header))


def test_loaded_bytes_are_parsed_by_device() -> None:
    lines = [
        "load_tensors:   CPU_Mapped model buffer size =     1.00 MiB",
        "load_tensors:      Vulkan0 model buffer size =     6.00 MiB",
        "llama_kv_cache:    Vulkan0 KV buffer size =     3.00 MiB",
        "llama_kv_cache:        CPU KV buffer size =     1.00 MiB",
        "llama_kv_cache: size =    4.00 MiB (   512 cells,   4 layers,  1/1 seqs), K (f32):    2.00 MiB",
        "sched_reserve:    Vulkan0 compute buffer size =     9.00 MiB",
        "sched_reserve: Vulkan_Host compute buffer size =     2.00 MiB",
    ]
    mib = 1 << 20
    assert measured_parts((TARGET, TARGET_KV), 7 * mib, lines, Placement(GPU, 3)) == {
        **{TARGET: 6 * mib, TARGET_KV: 3 * mib, SCRATCH: 9 * mib},
        **{TARGET + IN_MEMORY: mib, TARGET_KV + IN_MEMORY: mib, SCRATCH + IN_MEMORY: 2 * mib},
    }
    assert measured_parts((TARGET, TARGET_KV), 7 * mib, lines, PROCESSOR) == {
        **{TARGET: 7 * mib, TARGET_KV: 4 * mib, SCRATCH: 11 * mib}
    }


SHAPE = Shape("Q8_0", 256, 3, 4, 2, 512, 65536)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "model.gguf", SHAPE)


def cache(tokens: int) -> int:
    cells = -(-(tokens + 1) // 256) * 256
    return cells * SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 2


def test_weights_cache_and_scratch_by_the_header_alone(model: Path, tmp_path: Path) -> None:
    hollow = write_header_alone(model, tmp_path / "hollow.gguf")
    scratch = []
    for context in (512, 4096, 65536):
        with LlamaCppSizes(model, None) as sizes, LlamaCppSizes(hollow, None) as planned:
            parts = sizes.parts(context, NO_DRAFTER)
            assert parts == planned.parts(context, NO_DRAFTER)
            assert (sizes.trained, sizes.drafters) == (65536, (NO_DRAFTER,))
        assert parts[TARGET] == sum(info.nbytes for info in read_header(model).tensors.values())
        assert parts[TARGET_KV] == pytest.approx(cache(context), abs=1e4)
        assert parts.keys() == {TARGET, TARGET_KV, SCRATCH}
        scratch.append(parts[SCRATCH])
    mask = 32 * (65536 - 4096) * 2
    assert mask * 0.8 < scratch[2] - scratch[1] < mask * SHAPE.heads / 2  # it grows with the mask, not with the scores


def test_two_caches_are_added_and_a_buffer_that_is_planned_again_counts_once() -> None:
    lines = [
        "llama_context:        CPU  output buffer size =     1.00 MiB",
        "llama_kv_cache: size =    4.50 MiB (   768 cells,   6 layers,  1/1 seqs), K (f32):    2.25 MiB",
        "llama_kv_cache: size =    1.50 MiB (   768 cells,   2 layers,  1/1 seqs), K (f32):    0.75 MiB",
        "sched_reserve:        CPU compute buffer size =     9.00 MiB",
        "sched_reserve:        CPU compute buffer size =     2.00 MiB",
        "sched_reserve:      BLAS compute buffer size =     0.50 MiB",
    ]
    assert parse_size_lines(lines) == ReportedSizes(6 << 20, 7 << 19)
    with pytest.raises(ModelError, match="size of its cache"):
        parse_size_lines(lines[:1])


def test_a_drafter_of_another_target_is_refused_before_llama_cpp_aborts() -> None:
    drafter = MODELS_FOLDER / "smollm2" / "drafter.gguf"
    with pytest.raises(ModelError, match=f"{drafter}: hidden size 576, but the target's is 256"):
        LlamaCppSizes(MODELS_FOLDER / "embedded" / "target.gguf", drafter)
