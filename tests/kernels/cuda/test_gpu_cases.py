"""The cases of tests/gpu compile in their sizes on a GPU, with warnings as errors.

`make gpu-dry-run` does the same with every supported Triton.
"""

from pathlib import Path

import pytest
import triton

from localdflash.lab.scripts.gpu import dry_run
from tests.kernels.cuda.aot.ptx import ticket_is_fenced, touched_before_wait
from tests.kernels.cuda.aot.sass import loops, spills, undefined_uniform_registers

INSTALLED = Path(triton.__file__).parents[1]


# Kernels that end in a reduction by the last program to arrive.
TICKETS = {"_matmul", "_residual", "_qkv", "_head", "_markov_slot", "_top_k", "_lookup", "_route"}
# Of the main loop of a matrix product, by layout.
MAX_INSTRUCTIONS_PER_WEIGHT = {"q4_k": 2.6, "q5_k": 3.6, "q6_k": 4.1, "q8_0": 3.5}
# Arguments never written while a model runs: a kernel may read them before its predecessors have finished.
CONSTANT = {"base_ptr", "high_ptr", "scale_ptr", "supers_ptr", "minimum_ptr", "gain", "gain_ptr"}


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chip", dry_run.CHIPS)
def test_every_case_compiles_for(chip: int) -> None:
    cases = dry_run.compile_cases("gpu_cases", INSTALLED, chip)
    assert dry_run.faults(cases, {}, chip) == []
    kernels = [kernel for kernel_facts in cases.values() for kernel in kernel_facts]
    names = {kernel["kernel"] for kernel in kernels}
    assert {"_matmul", "_residual", "_qkv", "_head", "attention_kernel", "_accept", "_lookup", "_propose"} <= names
    assert any("float8" in name for name in cases) is (chip >= 89)
    assert {kernel["kernel"] for kernel in kernels if kernel["ticket_fenced"]} >= TICKETS
    for kernel in kernels:
        assert not kernel["undefined"], kernel
        assert kernel["ticket_fenced"] is not False, kernel
        assert kernel["waits"] is (chip >= 90), kernel
        assert set(kernel["before_wait"]) <= CONSTANT, kernel
    for layout, limit in MAX_INSTRUCTIONS_PER_WEIGHT.items():
        (kernel,) = cases[f"matmul {layout}"]
        (instructions,) = (count for count, products in kernel["loops"] if products == 32)  # 128 weights per thread
        assert instructions <= 128 * limit, (layout, instructions)
    # The assembler chooses which operations to fuse: another choice for two tiles would round rows differently.
    for name in (name for name in cases if name.startswith("two tiles ")):
        ((both,), (one,)) = cases[name], cases[name.removeprefix("two tiles ")]
        assert both["fused"] == 2 * one["fused"] > 0, name


def test_reading_ptx_finds_faults() -> None:
    """Partial results are stored, then a barrier, the ticket, a barrier, and only then reads that bypass L1."""
    sound = """st.global.b32 [%rd1], %r1; bar.sync 0; atom.global.gpu.acq_rel.add.u32 %r2, [%rd2], 1;
    bar.sync 0; ld.global.cg.b32 %r3, [%rd1];"""
    assert ticket_is_fenced(sound) is True
    assert ticket_is_fenced(sound[:30]) is None
    for fault in ("acq_rel", "bar.sync", ".cg"):
        assert ticket_is_fenced(sound.replace(fault, "relaxed", 1)) is False, fault
    late = """ld.param.b64 %rd1, [_kernel_param_0];\n ld.param.b64 %rd2, [_kernel_param_1];\n add.s64 %rd3, %rd2, %rd4;
    griddepcontrol.wait;\n ld.global.b32 %r1, [%rd1];"""
    assert touched_before_wait(late) == set()
    early = late.replace("griddepcontrol", "ld.global.b32 %r1, [%rd3];\n griddepcontrol")
    assert (touched_before_wait(early), touched_before_wait("ret;")) == ({1}, None)


def test_undefined_uniform_registers_are_found() -> None:
    """Taken from prompt attention with 32 columns of V per product, as ptxas 12.8 compiled it for a Hopper."""
    sound = """/*0050*/ ULDC.64 UR28, c[0x0][0x208] ;
    /*0060*/ UMOV UR14, 0x200 ;
    /*0070*/ UIADD3 UR16, UP0, UR14, 0x40, URZ ;
    /*0080*/ UMOV UR30, UR16 ;
    /*0090*/ UMOV UR31, 0x80000020 ;
    /*0098*/ VOTEU.ANY UR4, UPT, PT ;
    /*0099*/ REDUX.MAX.S32 UR5, R81 ;
    /*00a0*/ @!P3 LDG.E.128 R16, desc[UR28][R4.64] ;
    /*00b0*/ HGMMA.64x32x16.F32 R56, R24, gdesc[UR28].tnspB, R56 ;"""
    assert undefined_uniform_registers(sound) == []
    for missing in ("UMOV UR14", "UMOV UR31", "ULDC.64 UR28"):
        assert undefined_uniform_registers(sound.replace(missing, "UMOV UR50")), missing
    in_memory = sound.replace("R24, gdesc[UR28]", "gdesc[UR28]")
    assert undefined_uniform_registers(in_memory) == []
    assert undefined_uniform_registers(in_memory.replace("[UR28].tnsp", "[UR32].tnsp"))


def test_a_blackwell_loads_four_uniform_registers_at_once() -> None:
    listing = """/*0080*/ LDCU.128 UR20, c[0x0][0x380] ;
    /*0320*/ IADD.64 R48, R48, UR22 ;"""
    assert undefined_uniform_registers(listing) == []
    assert undefined_uniform_registers(listing.replace(".128", ".64")) == ["IADD.64 R48, R48, UR22"]


def test_spills_in_loops_are_counted() -> None:
    listing = """        /*0f20*/                   STL [R1], R4 ;
        /*0f30*/               @P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0f40*/                   LDL.LU R4, [R1] ;
        /*32b0*/              @!P0 BRA `(.L_x_1) ;
.L_x_0:
        /*40d0*/                   LDL R5, [R1+0x8] ;"""
    assert [spills(loop) for loop in loops(listing)] == [1]
    assert [spills(loop) for loop in loops(listing.replace("LDL.LU R4, [R1]", "IADD3 R4, R4"))] == [0]


def test_compile_and_resource_errors_are_reported() -> None:
    kernel = {"kernel": "_head", "shared": 100_000, "spills": 0, "undefined": []}
    cases = {"head": [kernel], "sample": "ValueError: no"}
    miscompiled = kernel | {"undefined": ["UMOV UR4, UR5"]}
    pairs = {"dense": {"kernels": [kernel | {"shared": 101_377}, kernel | {"spills": 3}, miscompiled]}}
    assert dry_run.faults(cases, pairs, 86) == [
        "sample: ValueError: no",
        "a dense pair: _head needs 101377 bytes of shared memory",
        "a dense pair: _head spills registers in a loop, 3 times",
        "a dense pair: _head was miscompiled, it reads an undefined register: UMOV UR4, UR5",
    ]


def test_constraints_pin_compatible_torch_and_triton(root: Path) -> None:
    """Every CUDA wheel of torch requires one version of Triton."""
    lines = (root / "constraints.txt").read_text().splitlines()
    versions = dict(line.split("==") for line in lines if line.startswith(("torch==", "triton==")))
    assert dry_run.PINNED[versions["torch"].rpartition(".")[0]] == versions["triton"]
