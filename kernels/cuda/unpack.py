"""Unpacks planes to float16 operands inside a kernel: one tile of words [R, BN] to four tiles [R, BN], exactly.

Integers are not converted. OR-ing a code of at most ten bits into the mantissa of 1024.0 (0x6400) gives the float16
number 1024 + code, or four bits further left 1024 + 16 * code, and one packed multiply-add subtracts the offset. The
assembly works on any two packed elements of a tile; the interpreter takes the branches without assembly.
"""

import triton
import triton.language as tl


@triton.jit
def unpack(words, high, HIGH_BITS: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, ASM: tl.constexpr):
    """Unpack words int16 [R, BN] and those of the high plane to four float16 tiles of values / `unit(CODE)`."""
    if not ASM:
        w0 = _value(_code(words, high, 0, HIGH_BITS), ZERO, CODE)
        w1 = _value(_code(words, high, 1, HIGH_BITS), ZERO, CODE)
        w2 = _value(_code(words, high, 2, HIGH_BITS), ZERO, CODE)
        w3 = _value(_code(words, high, 3, HIGH_BITS), ZERO, CODE)
    elif CODE == "e2m1":
        w0, w1, w2, w3 = _assemble(words, high, E2M1_ASM, 0)
    else:
        STEP: tl.constexpr = 1 if HIGH_BITS == 4 else 16
        w0, w1, w2, w3 = _raise(words, high, HIGH_BITS)
        w0 = _affine(w0, 1, ZERO)
        w1 = _affine(w1, STEP, ZERO)
        w2 = _affine(w2, 1, ZERO)
        w3 = _affine(w3, STEP, ZERO)
    return w0, w1, w2, w3


@triton.jit
def unpack_scaled(words, high, scales, HIGH_BITS: tl.constexpr, ASM: tl.constexpr):
    """Unpack to four tiles of code * byte / TINY, byte i of scales int32 [BN] for tile i, exact up to 31 * 63.

    The bits of a ten-bit code are the float16 subnormal code / TINY, so there is no offset to subtract.
    """
    if ASM:
        even, odd = tl.inline_asm_elementwise(
            SCALES_ASM, "=&r,=&r,r", [scales], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
        even, _ = tl.broadcast(even[None, :], words)
        odd, _ = tl.broadcast(odd[None, :], words)
        w0, w1, w2, w3 = _raise(words, high, HIGH_BITS, MAGIC=0)
        w0 = _scale(w0, even, 0)
        w1 = _scale(w1, odd, 0)
        w2 = _scale(w2, even, 1)
        w3 = _scale(w3, odd, 1)
    else:
        w0 = _tiny(_code(words, high, 0, HIGH_BITS) * (scales & 255)[None, :])
        w1 = _tiny(_code(words, high, 1, HIGH_BITS) * ((scales >> 8) & 255)[None, :])
        w2 = _tiny(_code(words, high, 2, HIGH_BITS) * ((scales >> 16) & 255)[None, :])
        w3 = _tiny(_code(words, high, 3, HIGH_BITS) * ((scales >> 24) & 255)[None, :])
    return w0, w1, w2, w3


@triton.jit
def unpack_minimums(words, supers, ASM: tl.constexpr):
    """Multiply the four bytes of words int32 by the high halves of supers; return float16 products and their errors."""
    if ASM:
        p0, p1, p2, p3, r0, r1, r2, r3 = tl.inline_asm_elementwise(
            MINIMUMS_ASM,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r",
            [words, supers],
            dtype=(tl.float16,) * 8,
            is_pure=True,
            pack=2,
        )
    else:
        factor = (supers >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        p0, r0 = _split((words & 255).to(tl.float32) * factor)
        p1, r1 = _split(((words >> 8) & 255).to(tl.float32) * factor)
        p2, r2 = _split(((words >> 16) & 255).to(tl.float32) * factor)
        p3, r3 = _split(((words >> 24) & 255).to(tl.float32) * factor)
    return p0, p1, p2, p3, r0, r1, r2, r3


@triton.jit
def _split(x):
    top = x.to(tl.float16)
    return top, (x - top.to(tl.float32)).to(tl.float16)


@triton.jit
def _tiny(codes):
    return codes.to(tl.int16).to(tl.float16, bitcast=True)


TINY = tl.constexpr(2.0**24)


@triton.jit
def float16(words, i: tl.constexpr):
    """Return half i of words int32, a float16 number."""
    return (words >> (16 * i)).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def half(words, i: tl.constexpr):
    """Return half i of words int32, a float16 number, as float32."""
    return float16(words, i).to(tl.float32)


@triton.jit
def byte(words, i: tl.constexpr):
    """Return the signed byte i of words int32 as float32, through the mantissa of 2^23: conversions are slow."""
    raised = (((words >> (8 * i)) ^ 0x80) & 0xFF) | 0x4B000000
    return raised.to(tl.float32, bitcast=True) - 8388736.0


@triton.constexpr_function
def unit(code):
    """Return the factor that `unpack` leaves out: an e2m1 exponent is copied unbiased into a float16."""
    return {"int": 1.0, "e2m1": 2.0**14}[code]


@triton.jit
def _code(words, high, i: tl.constexpr, HIGH_BITS: tl.constexpr):
    low = (words >> (4 * i)) & 0xF
    if HIGH_BITS == 0:
        return low
    else:  # noqa: RET505 (the compiler must not see both)
        return low | (((high.to(tl.int16) >> (HIGH_BITS * i)) & ((1 << HIGH_BITS) - 1)) << 4)


@triton.jit
def _value(code, ZERO: tl.constexpr, CODE: tl.constexpr):
    if CODE == "e2m1":
        return (((code & 8) << 12) | ((code & 7) << 9)).to(tl.float16, bitcast=True)
    return (code - ZERO).to(tl.float16)


@triton.jit
def _raise(words, high, HIGH_BITS: tl.constexpr, MAGIC: tl.constexpr = 0x64):
    """Return four float16 tiles 1024 + code; tiles 1 and 3 hold 16 * code unless HIGH_BITS is 4. MAGIC 0: no 1024."""
    if HIGH_BITS == 0:
        return _assemble(words, high, raise_4_asm(MAGIC), 0)
    elif HIGH_BITS == 2:  # noqa: RET505
        return _assemble(words, high, raise_6_asm(MAGIC), 2)
    else:
        return _assemble(words, high, raise_8_asm(MAGIC), 4)


@triton.jit
def _assemble(words, high, TEXT: tl.constexpr, HIGH_BITS: tl.constexpr):
    """Run the assembly TEXT on packed elements: two at a time, or four with a high plane of bytes."""
    if HIGH_BITS == 0:
        return tl.inline_asm_elementwise(
            TEXT,
            "=&r,=&r,=&r,=&r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    elif HIGH_BITS == 2:  # noqa: RET505
        return tl.inline_asm_elementwise(
            TEXT,
            "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r",
            [words, high],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=4,
        )
    else:
        return tl.inline_asm_elementwise(
            TEXT,
            "=&r,=&r,=&r,=&r,r,r",
            [words, high],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )


@triton.jit
def _affine(raised, STEP: tl.constexpr, ZERO: tl.constexpr):
    """Convert 1024 + STEP * code to code - ZERO."""
    return tl.inline_asm_elementwise(affine_asm(STEP, ZERO), "=r,r", [raised], dtype=tl.float16, is_pure=True, pack=2)


@triton.jit
def _scale(raised, scales, half: tl.constexpr):
    """Multiply by the low (0) or high (1) half of scales int32, a float16 number each."""
    text: tl.constexpr = SCALE_HIGH_ASM if half else SCALE_LOW_ASM
    return tl.inline_asm_elementwise(text, "=r,r,r,r", [raised, scales], dtype=tl.float16, is_pure=True, pack=2)


@triton.constexpr_function
def affine_asm(step, zero):
    """Return assembly, $1 -> $0: (x - 1024) / step - zero for a step of 1 or 16, in one operation, exactly."""
    factor, offset = (0x3C00, 0xE400 + zero) if step == 1 else (0x2C00, 0xD400 + 16 * zero)
    return f"""{{
    .reg .b32 factor, offset;
    mov.b32 factor, {factor * 0x10001:#x};
    mov.b32 offset, {offset * 0x10001:#x};
    fma.rn.f16x2 $0, $1, factor, offset;
}}"""


# $2: four bytes -> $0: bytes 0 and 2 as float16, $1: a sixteenth of bytes 1 and 3.
SCALES_ASM = tl.constexpr("""{
    .reg .b32 next, even, odd, factor, offset;
    shr.b32 next, $2, 8;
    lop3.b32 even, $2, 0x00ff00ff, 0x64006400, 0xea;
    lop3.b32 odd, next, 0x00ff00ff, 0x64006400, 0xea;
    mov.b32 offset, 0x64006400;
    sub.rn.f16x2 $0, even, offset;
    mov.b32 factor, 0x2c002c00;
    mov.b32 offset, 0xd400d400;
    fma.rn.f16x2 $1, odd, factor, offset;
}""")

# $1: two numbers; $2, $3: each one's pair of factors -> $0.
SCALE_LOW_ASM = tl.constexpr("""{
    .reg .b32 factor;
    prmt.b32 factor, $2, $3, 0x5410;
    mul.rn.f16x2 $0, $1, factor;
}""")
SCALE_HIGH_ASM = tl.constexpr("""{
    .reg .b32 factor;
    prmt.b32 factor, $2, $3, 0x7632;
    mul.rn.f16x2 $0, $1, factor;
}""")


def _minimum(i: int) -> str:
    return f"""
    prmt.b32 code, $8, $9, {0x4400 + 0x1111 * i:#x};
    lop3.b32 code, code, 0x00ff00ff, 0x64006400, 0xea;
    sub.rn.f16x2 code, code, offset;
    mul.rn.f16x2 ${i}, code, factor;
    neg.f16x2 product, ${i};
    fma.rn.f16x2 ${4 + i}, code, factor, product;"""


# $8, $9: four bytes each, $10, $11: pairs of factors -> $0..$3: bytes times the upper factor, $4..$7: rounding errors.
MINIMUMS_ASM = tl.constexpr(
    """{
    .reg .b32 code, product, factor, offset;
    mov.b32 offset, 0x64006400;
    prmt.b32 factor, $10, $11, 0x7632;"""
    + "".join(_minimum(i) for i in range(4))
    + "\n}"
)


@triton.constexpr_function
def raise_4_asm(magic):
    """Return assembly, $4: two words of four nibbles -> $0..$3, tiles 0 to 3; `magic` is 0x64 (1024.0) or 0."""
    return f"""{{
    .reg .b32 next;
    shr.b32 next, $4, 8;
    lop3.b32 $0, $4, 0x000f000f, {magic * 0x1000100:#x}, 0xea;
    lop3.b32 $1, $4, 0x00f000f0, {magic * 0x1000100:#x}, 0xea;
    lop3.b32 $2, next, 0x000f000f, {magic * 0x1000100:#x}, 0xea;
    lop3.b32 $3, next, 0x00f000f0, {magic * 0x1000100:#x}, 0xea;
}}"""


@triton.constexpr_function
def raise_6_asm(magic):
    """Return assembly, $8, $9: four words of nibbles, $10: two-bit fields -> $0, $1: tile 0, ... $6, $7: tile 3."""
    text = "{\n    .reg .b32 field, next, shifted, code;"
    for pair in range(2):
        text += f"""
    prmt.b32 field, $10, 0, {(0x4140, 0x4342)[pair]:#x};
    shr.b32 next, ${8 + pair}, 8;
    shl.b32 shifted, field, 4;
    lop3.b32 code, ${8 + pair}, shifted, 0x000f000f, 0xe4;
    lop3.b32 ${pair}, code, 0x003f003f, {magic * 0x1000100:#x}, 0xea;
    shl.b32 shifted, field, 6;
    lop3.b32 code, ${8 + pair}, shifted, 0x00f000f0, 0xe4;
    lop3.b32 ${2 + pair}, code, 0x03f003f0, {magic * 0x1000100:#x}, 0xea;
    lop3.b32 code, next, field, 0x000f000f, 0xe4;
    lop3.b32 ${4 + pair}, code, 0x003f003f, {magic * 0x1000100:#x}, 0xea;
    shl.b32 shifted, field, 2;
    lop3.b32 code, next, shifted, 0x00f000f0, 0xe4;
    lop3.b32 ${6 + pair}, code, 0x03f003f0, {magic * 0x1000100:#x}, 0xea;"""
    return text + "\n}"


@triton.constexpr_function
def raise_8_asm(magic):
    """Return assembly, $4, $5: two words of low and high nibbles -> $0..$3; `even`: codes 0 and 2, `odd`: 1 and 3."""
    return f"""{{
    .reg .b32 low, high, even, odd, magic;
    shl.b32 high, $5, 4;
    lop3.b32 even, $4, high, 0x0f0f0f0f, 0xe4;
    shr.b32 low, $4, 4;
    lop3.b32 odd, low, $5, 0x0f0f0f0f, 0xe4;
    mov.b32 magic, {magic * 0x1010101:#x};
    prmt.b32 $0, even, magic, 0x4240;
    prmt.b32 $1, odd, magic, 0x4240;
    prmt.b32 $2, even, magic, 0x4341;
    prmt.b32 $3, odd, magic, 0x4341;
}}"""


def _e2m1(i: int) -> str:
    """Return assembly that moves the sign of nibble i to bit 15, its exponent and mantissa to bits 9 to 11."""
    rest = 9 - 4 * i
    return f"""
    shl.b32 top, $4, {12 - 4 * i};
    {"shl" if rest > 0 else "shr"}.b32 bottom, $4, {abs(rest)};
    lop3.b32 bottom, top, bottom, 0x80008000, 0xe4;
    and.b32 ${i}, bottom, 0x8e008e00;"""


# $4: two words of four nibbles -> $0..$3.
E2M1_ASM = tl.constexpr("{\n    .reg .b32 top, bottom;" + "".join(_e2m1(i) for i in range(4)) + "\n}")
