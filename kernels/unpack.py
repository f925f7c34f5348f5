"""Planes to float16 operands inside a kernel: one word tile [R, BN] unpacks in place into four tiles [R, BN], exactly.

No integer is ever converted: OR-ing a code of at most ten bits into the mantissa of 1024.0 (0x6400) makes the float16
number 1024 + code, four bits further left 1024 + 16 code, and one packed multiply-add takes the offset off again.
The assembly works on packed pairs whatever their place in the tile; the interpreter takes the plain branches.
"""

import struct

import triton
import triton.language as tl


@triton.jit
def unpack(words, high, HIGH_BITS: tl.constexpr, ZERO: tl.constexpr, CODE: tl.constexpr, ASM: tl.constexpr):
    """Words int16 [R, BN], and those of the high plane, to four float16 tiles: the codes' values / `unit(CODE)`."""
    if not ASM:
        w0 = _value(_code(words, high, 0, HIGH_BITS), ZERO, CODE)
        w1 = _value(_code(words, high, 1, HIGH_BITS), ZERO, CODE)
        w2 = _value(_code(words, high, 2, HIGH_BITS), ZERO, CODE)
        w3 = _value(_code(words, high, 3, HIGH_BITS), ZERO, CODE)
    elif CODE == "e2m1":
        w0, w1, w2, w3 = _assemble(words, high, E2M1_ASM, 0)
    elif CODE == "e4m3":
        w0, w1, w2, w3 = _assemble(words, high, E4M3_ASM, 4)
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
    """As `unpack`, times the four bytes of scales int32 [BN]: float16 code * byte, exact up to 31 * 63."""
    if ASM:
        STEP: tl.constexpr = 1 if HIGH_BITS == 4 else 16
        w0, w1, w2, w3 = _raise(words, high, HIGH_BITS)
        w0 = _scale(w0, scales, 0, 1)
        w1 = _scale(w1, scales, 1, STEP)
        w2 = _scale(w2, scales, 2, 1)
        w3 = _scale(w3, scales, 3, STEP)
    else:
        w0 = (_code(words, high, 0, HIGH_BITS) * (scales & 255)[None, :]).to(tl.float16)
        w1 = (_code(words, high, 1, HIGH_BITS) * ((scales >> 8) & 255)[None, :]).to(tl.float16)
        w2 = (_code(words, high, 2, HIGH_BITS) * ((scales >> 16) & 255)[None, :]).to(tl.float16)
        w3 = (_code(words, high, 3, HIGH_BITS) * ((scales >> 24) & 255)[None, :]).to(tl.float16)
    return w0, w1, w2, w3


@triton.constexpr_function
def unit(code):
    """What `unpack` leaves out: a small float's exponent is taken over as it is, with float16's bias."""
    return {"int": 1.0, "e4m3": 2.0**8, "e2m1": 2.0**14}[code]


@triton.jit
def _code(words, high, i: tl.constexpr, HIGH_BITS: tl.constexpr):
    low = (words >> (4 * i)) & 0xF
    if HIGH_BITS == 0:
        return low
    else:  # noqa: RET505 (the compiler must not see both)
        return low | (((high.to(tl.int16) >> (HIGH_BITS * i)) & ((1 << HIGH_BITS) - 1)) << 4)


@triton.jit
def _value(code, ZERO: tl.constexpr, CODE: tl.constexpr):
    if CODE == "e4m3":
        return (((code & 0x80) << 8) | ((code & 0x7F) << 7)).to(tl.float16, bitcast=True)
    elif CODE == "e2m1":  # noqa: RET505
        return (((code & 8) << 12) | ((code & 7) << 9)).to(tl.float16, bitcast=True)
    else:
        return (code - ZERO).to(tl.float16)


@triton.jit
def _raise(words, high, HIGH_BITS: tl.constexpr):
    """Four float16 tiles 1024 + code; tiles 1 and 3 are 1024 + 16 * code unless HIGH_BITS is 4."""
    if HIGH_BITS == 0:
        return _assemble(words, high, RAISE_4_ASM, 0)
    elif HIGH_BITS == 2:  # noqa: RET505
        return _assemble(words, high, RAISE_6_ASM, 2)
    else:
        return _assemble(words, high, RAISE_8_ASM, 4)


@triton.jit
def _assemble(words, high, TEXT: tl.constexpr, HIGH_BITS: tl.constexpr):
    """Run TEXT on packed elements: two at a time, or four beside a high plane of bytes."""
    half: tl.constexpr = tl.float16
    if HIGH_BITS == 0:
        return tl.inline_asm_elementwise(
            TEXT, "=&r,=&r,=&r,=&r,r", [words], dtype=(half, half, half, half), is_pure=True, pack=2
        )
    elif HIGH_BITS == 2:  # noqa: RET505
        return tl.inline_asm_elementwise(
            TEXT, "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r", [words, high],
            dtype=(half, half, half, half), is_pure=True, pack=4,
        )
    else:
        return tl.inline_asm_elementwise(
            TEXT, "=&r,=&r,=&r,=&r,r,r", [words, high], dtype=(half, half, half, half), is_pure=True, pack=2
        )


@triton.jit
def _affine(raised, STEP: tl.constexpr, ZERO: tl.constexpr):
    """1024 + STEP * code to code - ZERO."""
    return tl.inline_asm_elementwise(
        affine_asm(STEP, ZERO), "=r,r", [raised], dtype=tl.float16, is_pure=True, pack=2
    )


@triton.jit
def _scale(raised, scales, i: tl.constexpr, STEP: tl.constexpr):
    """1024 + STEP * code to code * (byte i of scales)."""
    factor, offset = tl.inline_asm_elementwise(
        factor_asm(i, STEP), "=&r,=&r,r", [scales], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
    )
    factor, _ = tl.broadcast(factor[None, :], raised)
    offset, _ = tl.broadcast(offset[None, :], raised)
    return tl.inline_asm_elementwise(
        SCALE_ASM, "=r,r,r,r,r,r", [raised, factor, offset], dtype=tl.float16, is_pure=True, pack=2
    )


def _pair(value):
    """A float16 number twice, as the literal of a packed register."""
    bits = struct.unpack("<H", struct.pack("<e", value))[0]
    return f"0x{bits:04x}{bits:04x}"


@triton.constexpr_function
def affine_asm(step, zero):
    """$1 -> $0: (x - 1024) / step - zero, in one rounding-free operation."""
    return f"""{{
    .reg .b32 factor, offset;
    mov.b32 factor, {_pair(1 / step)};
    mov.b32 offset, {_pair(-1024 / step - zero)};
    fma.rn.f16x2 $0, $1, factor, offset;
}}"""


@triton.constexpr_function
def factor_asm(i, step):
    """$2: four bytes -> $0: byte i / step, $1: -1024 times that; each twice."""
    return f"""{{
    .reg .b32 magic, raised, factor, offset;
    mov.b32 magic, 0x64646464;
    prmt.b32 raised, $2, magic, {hex(0x4040 + 0x0101 * i)};
    mov.b32 factor, {_pair(1 / step)};
    mov.b32 offset, {_pair(-1024 / step)};
    fma.rn.f16x2 $0, raised, factor, offset;
    mov.b32 offset, {_pair(-1024)};
    mul.rn.f16x2 $1, $0, offset;
}}"""


# $1: two values; $2, $3 and $4, $5: each one's factor and offset, twice in a register -> $0.
SCALE_ASM = tl.constexpr("""{
    .reg .b32 factor, offset;
    prmt.b32 factor, $2, $3, 0x7610;
    prmt.b32 offset, $4, $5, 0x7610;
    fma.rn.f16x2 $0, $1, factor, offset;
}""")

# $4: two words of four nibbles -> $0..$3.
RAISE_4_ASM = tl.constexpr("""{
    .reg .b32 next;
    shr.b32 next, $4, 8;
    lop3.b32 $0, $4, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $1, $4, 0x00f000f0, 0x64006400, 0xea;
    lop3.b32 $2, next, 0x000f000f, 0x64006400, 0xea;
    lop3.b32 $3, next, 0x00f000f0, 0x64006400, 0xea;
}""")

# $4, $5: two words of low and of high nibbles -> $0..$3. Bytes first, then each beside the exponent byte.
BYTES = """
    shl.b32 high, $5, 4;
    lop3.b32 even, $4, high, 0x0f0f0f0f, 0xac;
    shr.b32 low, $4, 4;
    lop3.b32 odd, low, $5, 0x0f0f0f0f, 0xac;"""

RAISE_8_ASM = tl.constexpr(f"""{{
    .reg .b32 low, high, even, odd, magic;{BYTES}
    mov.b32 magic, 0x64646464;
    prmt.b32 $0, even, magic, 0x4240;
    prmt.b32 $1, odd, magic, 0x4240;
    prmt.b32 $2, even, magic, 0x4341;
    prmt.b32 $3, odd, magic, 0x4341;
}}""")
