"""Unpacks planes to float16 operands inside a kernel: a tile of words [R, BN] to four tiles [R, BN].

Integers are not converted. OR-ing a code of at most ten bits into the mantissa of 1024.0 (0x6400) gives the float16
number 1024 + code, or four bits further left 1024 + 16 * code, and one packed multiply-add subtracts the offset. All
results are exact but some of Q6_K, see `unpack_scaled`. The assembly works on any two packed elements of a tile; the
interpreter takes the branches without assembly.
"""

import triton
import triton.language as tl


@triton.jit
def unpack(words, high, HIGH_BITS: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, ASM: tl.constexpr):
    """Unpack words int16 [R, BN] and a high plane of 0 or 4 bits to four float16 tiles of values / `unit(CODE)`."""
    tl.static_assert(HIGH_BITS != 2)
    if not ASM:
        w0 = _value(_code(words, high, 0, HIGH_BITS, 0), ZERO, CODE)
        w1 = _value(_code(words, high, 1, HIGH_BITS, 0), ZERO, CODE)
        w2 = _value(_code(words, high, 2, HIGH_BITS, 0), ZERO, CODE)
        w3 = _value(_code(words, high, 3, HIGH_BITS, 0), ZERO, CODE)
    elif CODE == "e2m1":
        w0, w1, w2, w3 = _assemble(words, words, E2M1_ASM)
    else:
        STEP: tl.constexpr = 1 if HIGH_BITS == 4 else 16
        w0, w1, w2, w3 = _raise(words, high, HIGH_BITS, MAGIC=0x64, HALF=0)
        w0 = _affine(w0, 1, ZERO)
        w1 = _affine(w1, STEP, ZERO)
        w2 = _affine(w2, 1, ZERO)
        w3 = _affine(w3, STEP, ZERO)
    return w0, w1, w2, w3


@triton.jit
def unpack_scaled(
    words, high, scales, HALF: tl.constexpr, HIGH_BITS: tl.constexpr, ZERO: tl.constexpr, SIGNED: tl.constexpr,
    ASM: tl.constexpr,
):  # fmt: skip
    """Unpack to four tiles of (code - ZERO) * byte / TINY, byte i of scales int32 [BN] for tile i.

    The bits of a ten-bit code are the float16 subnormal code / TINY, so there is no offset to subtract. Results are
    exact up to 2048 / TINY, so those without ZERO are; larger ones are rounded once. HALF: as for `_raise`.
    """
    tl.static_assert(HIGH_BITS != 4)
    if ASM:
        text: tl.constexpr = scales_asm(SIGNED)
        even, odd = tl.inline_asm_elementwise(
            text, "=&r,=&r,r", [scales], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
        )
        even, _ = tl.broadcast(even[None, :], words)
        odd, _ = tl.broadcast(odd[None, :], words)
        w0, w1, w2, w3 = _raise(words, high, HIGH_BITS, MAGIC=0, HALF=HALF)
        w0 = _scale(w0, even, 0, 1, ZERO)
        w1 = _scale(w1, odd, 0, 16, ZERO)
        w2 = _scale(w2, even, 1, 1, ZERO)
        w3 = _scale(w3, odd, 1, 16, ZERO)
    else:
        w0 = _tiny((_code(words, high, 0, HIGH_BITS, HALF) - ZERO) * _byte(scales, 0, SIGNED)[None, :])
        w1 = _tiny((_code(words, high, 1, HIGH_BITS, HALF) - ZERO) * _byte(scales, 1, SIGNED)[None, :])
        w2 = _tiny((_code(words, high, 2, HIGH_BITS, HALF) - ZERO) * _byte(scales, 2, SIGNED)[None, :])
        w3 = _tiny((_code(words, high, 3, HIGH_BITS, HALF) - ZERO) * _byte(scales, 3, SIGNED)[None, :])
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
def _tiny(product):
    return (product.to(tl.float32) * 2.0**-24).to(tl.float16)


@triton.jit
def _byte(words, i: tl.constexpr, SIGNED: tl.constexpr):
    return (words << (24 - 8 * i)) >> 24 if SIGNED else (words >> (8 * i)) & 255


TINY = tl.constexpr(2.0**24)


@triton.jit
def float16(words, i: tl.constexpr):
    """Return half i of words int32, a float16 number."""
    return (words >> (16 * i)).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def half(words, i: tl.constexpr):
    """Return half i of words int32, a float16 number, as float32."""
    return float16(words, i).to(tl.float32)


@triton.constexpr_function
def unit(code):
    """Return the factor that `unpack` leaves out: an e2m1 exponent is copied unbiased into a float16."""
    return {"int": 1.0, "e2m1": 2.0**14}[code]


@triton.jit
def _code(words, high, i: tl.constexpr, HIGH_BITS: tl.constexpr, HALF: tl.constexpr):
    low = (words >> (4 * i)) & 0xF
    if HIGH_BITS == 0:
        return low
    elif HIGH_BITS == 2:  # noqa: RET505 (the compiler must not see the others)
        return low | (((high >> (8 * HALF + 4 * (i % 2) + 2 * (i // 2))) & 3) << 4)
    else:
        return low | (((high >> (4 * i)) & 0xF) << 4)


@triton.jit
def _value(code, ZERO: tl.constexpr, CODE: tl.constexpr):
    if CODE == "e2m1":
        return (((code & 8) << 12) | ((code & 7) << 9)).to(tl.float16, bitcast=True)
    return (code - ZERO).to(tl.float16)


@triton.jit
def _raise(words, high, HIGH_BITS: tl.constexpr, MAGIC: tl.constexpr, HALF: tl.constexpr):
    """Return four float16 tiles 1024 + code; tiles 1 and 3 hold 16 * code unless HIGH_BITS is 4. MAGIC 0: no 1024.

    HALF is the byte of the words of a two-bit high plane.
    """
    if HIGH_BITS == 0:
        return _assemble(words, words, raise_4_asm(MAGIC))
    elif HIGH_BITS == 2:  # noqa: RET505
        return _assemble(words, high, raise_6_asm(HALF))
    else:
        return _assemble(words, high, raise_8_asm(MAGIC))


@triton.jit
def _assemble(words, high, TEXT: tl.constexpr):
    """Run the assembly TEXT on two packed elements at a time; without a high plane it does not read `high`."""
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
def _scale(raised, scales, HALF: tl.constexpr, STEP: tl.constexpr, ZERO: tl.constexpr):
    """Return (code - ZERO) * byte / TINY from STEP * code / TINY, and byte / STEP in half HALF of scales int32."""
    text: tl.constexpr = scale_asm(HALF, STEP, ZERO)
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


@triton.constexpr_function
def scales_asm(signed):
    """Return assembly, $2: four bytes -> $0: bytes 0 and 2 as float16, $1: a sixteenth of bytes 1 and 3."""
    bias = 0x80 if signed else 0  # flips the sign bit, which adds 128 to a signed byte
    even, odd = 0x6400 + bias, 0xD400 + bias  # 1024 + bias, -(1024 + bias) / 16
    return f"""{{
    .reg .b32 next, even, odd, factor, offset;
    shr.b32 next, $2, 8;
    lop3.b32 even, $2, 0x00ff00ff, {even * 0x10001:#x}, 0x6a;
    lop3.b32 odd, next, 0x00ff00ff, {even * 0x10001:#x}, 0x6a;
    mov.b32 offset, {even * 0x10001:#x};
    sub.rn.f16x2 $0, even, offset;
    mov.b32 factor, 0x2c002c00;
    mov.b32 offset, {odd * 0x10001:#x};
    fma.rn.f16x2 $1, odd, factor, offset;
}}"""


@triton.constexpr_function
def scale_asm(half, step, zero):
    """Return assembly, $1: two codes times `step`; $2, $3: each one's pair of factors -> $0: (code - zero) * factor."""
    unscaled = 0x8000 + zero * step  # -zero * step as a float16 subnormal, like the codes
    subtracted = f"""
    mov.b32 offset, {unscaled * 0x10001:#x};
    mul.rn.f16x2 offset, factor, offset;
    fma.rn.f16x2 $0, $1, factor, offset;"""
    return f"""{{
    .reg .b32 factor, offset;
    .reg .b16 first, second, unused;
    mov.b32 {"{unused, first}" if half else "{first, unused}"}, $2;
    mov.b32 {"{unused, second}" if half else "{second, unused}"}, $3;
    mov.b32 factor, {{first, second}};
    {subtracted if zero else "mul.rn.f16x2 $0, $1, factor;"}
}}"""


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
def raise_6_asm(half):
    """Return assembly, $4: two words of nibbles, $5: of two-bit fields -> $0..$3, tiles 0 to 3; byte `half` of $5."""
    shifts = (
        ("shr.b32 first, $5, 4", "shr.b32 last, $5, 6") if half else ("shl.b32 first, $5, 4", "shl.b32 last, $5, 2")
    )
    return f"""{{
    .reg .b32 next, first, last, field;
    shr.b32 next, $4, 8;
    {shifts[0]};
    {shifts[1]};
    and.b32 field, first, 0x00300030;
    lop3.b32 $0, $4, 0x000f000f, field, 0xea;
    and.b32 field, first, 0x03000300;
    lop3.b32 $1, $4, 0x00f000f0, field, 0xea;
    and.b32 field, last, 0x00300030;
    lop3.b32 $2, next, 0x000f000f, field, 0xea;
    and.b32 field, last, 0x03000300;
    lop3.b32 $3, next, 0x00f000f0, field, 0xea;
}}"""


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
