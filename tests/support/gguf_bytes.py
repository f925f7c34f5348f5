"""GGUF files built byte by byte: valid ones, and broken ones with one defect each."""

import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
GGML_F32, GGML_Q4_0, GGML_Q8_0, GGML_Q4_K, GGML_I8, GGML_I64 = 0, 2, 8, 12, 24, 27


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes, size: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data) if size is None else size) + data


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + u32(kind) + payload


def array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    return pair(key, ARRAY, u32(kind) + u64(count) + payload)


def tensor(name: str | bytes = "t", ne: tuple[int, ...] = (8,), kind: int = GGML_F32, offset: int = 0) -> bytes:
    return text(name) + u32(len(ne)) + b"".join(map(u64, ne)) + u32(kind) + u64(offset)


def file(
    *pairs: bytes,
    tensors: tuple[bytes, ...] = (),
    data: int = 4096,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a GGUF file with `data` zero bytes of tensor data."""
    counts = u64(len(tensors) if n_tensors is None else n_tensors) + u64(len(pairs) if n_pairs is None else n_pairs)
    header = magic + u32(version) + counts + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % alignment + data)


def align(value: int) -> bytes:
    return pair("general.alignment", U32, u32(value))


VALID: dict[str, bytes] = {
    "nothing": file(data=0),
    "version 2": file(version=2),
    "one of each number": file(
        *(pair(f"k{kind}", kind, bytes(size)) for kind, size in [(U8, 1), (I8, 1), (U16, 2), (I16, 2), (U32, 4)]),
        *(pair(f"k{kind}", kind, bytes(size)) for kind, size in [(I32, 4), (F32, 4), (U64, 8), (I64, 8), (F64, 8)]),
    ),
    "five of the shortest keys": file(*(pair(key, U8, b"1") for key in "abcde"), data=0, alignment=1),
    "empty string": file(pair("k", STRING, text(""))),
    "empty array": file(array("k", STRING, 0, b"")),
    "two tensors": file(tensors=(tensor("a"), tensor("b", offset=32))),
    "padding between": file(tensors=(tensor("a", (9,)), tensor("b", offset=64))),
    "no padding at the end": file(tensors=(tensor("a", (9,)),), data=36),
    "four axes": file(tensors=(tensor("a", (2, 3, 4, 5)),)),
    "blocks": file(tensors=(tensor("a", (256, 2), GGML_Q4_K), tensor("b", (32,), GGML_Q8_0, 288))),
    "alignment 1": file(align(1), tensors=(tensor("a", (1,), GGML_I8), tensor("b", (1,), GGML_I8, 1)), alignment=1),
    "alignment 64": file(align(64), tensors=(tensor("a"), tensor("b", offset=64)), alignment=64),
    "name of 63 bytes": file(tensors=(tensor("n" * 63),)),
}

MALFORMED: dict[str, tuple[bytes, str]] = {
    # The first 24 bytes.
    "empty file": (b"", "the magic needs 4 bytes at byte 0, the file has 0"),
    "magic only": (b"GGUF", "the version needs 4 bytes"),
    "magic of the old format": (file(magic=b"ggml"), "not a GGUF file .it starts with b'ggml'"),
    "pointer of git lfs": (b"version https://git-lfs.github.com/spec/v1\n", "not a GGUF file"),
    "escape sequence": (b"\x1b]0;" + bytes(60), r"not a GGUF file .it starts with b'\\x1b\]0;'"),
    "version 1": (file(version=1), "GGUF version 1 is not supported"),
    "version 4": (file(version=4), "GGUF version 4 is not supported"),
    "big-endian 3": (file(version=3 << 24), "big-endian"),
    "2^64-1 tensors": (file(n_tensors=2**64 - 1), "18446744073709551615 tensors, at most"),
    "100001 tensors": (file(n_tensors=100_001), "100001 tensors, at most 100000"),
    "tensors one byte too short": (file(n_tensors=10, data=321, alignment=1), "10 tensors do not fit"),
    "more tensors than the file holds": (file(n_tensors=1000, data=100), "1000 tensors do not fit"),
    "one tensor too many": (file(tensors=(tensor(),), n_tensors=2), "the name of tensor 1 is empty"),
    "2^64-1 keys": (file(n_pairs=2**64 - 1), "18446744073709551615 metadata keys, at most"),
    "10001 keys": (file(n_pairs=10_001), "10001 metadata keys, at most 10000"),
    "keys one byte too short": (file(n_pairs=10, data=139, alignment=1), "10 metadata keys do not fit"),
    "more keys than the file holds": (file(n_pairs=1000, data=100), "1000 metadata keys do not fit"),
    "one key too many": (file(pair("k", U8, b"1"), n_pairs=2), "metadata key 1 is empty"),
    "counts missing": (b"GGUF" + u32(3) + u64(0), "the number of metadata keys needs 8 bytes"),
    # Metadata.
    "key of 2^64-1 bytes": (file(text(b"k", 2**64 - 1)), "metadata key 0 needs 18446744073709551615 bytes"),
    "key of 256 bytes": (file(pair("k" * 256, U8, b"1")), "metadata key 0 is longer than 255 bytes"),
    "empty key": (file(pair("", U8, b"1")), "metadata key 0 is empty"),
    "key that is not UTF-8": (file(pair(b"k\xff", U8, b"1")), "metadata key 0 is not UTF-8"),
    "key with NUL": (file(pair("k\0k", U8, b"1")), "unprintable characters"),
    "key with escape": (file(pair("k\x1b[31m", U8, b"1")), "unprintable characters"),
    "key with text direction": (file(pair("k\u202ek", U8, b"1")), "unprintable characters"),
    "key twice": (file(pair("k", U8, b"1"), pair("k", U8, b"1")), "duplicate metadata key k"),
    "value type 13": (file(pair("k", 13, bytes(8))), "k has the unknown value type 13"),
    "value missing": (b"GGUF" + u32(3) + u64(0) + u64(1) + text("long key") + u32(U64), "long key needs 8 bytes"),
    "type missing": (b"GGUF" + u32(3) + u64(0) + u64(1) + text("long key"), "long key needs 4 bytes"),
    "bool 2": (file(pair("k", BOOL, b"\2")), "bool that is neither 0 nor 1"),
    "bool 255 in an array": (file(array("k", BOOL, 3, b"\1\0\xff")), "bool that is neither 0 nor 1"),
    "string of 2^64-1 bytes": (file(pair("k", STRING, text("v", 2**64 - 1))), "k needs 18446744073709551615 bytes"),
    "string one byte too long": (file(pair("k", STRING, text("v", 2)), data=0, alignment=1), "k needs 2 bytes"),
    "string that is not UTF-8": (file(pair("k", STRING, text(b"\xc3("))), "k is not UTF-8"),
    "string with a surrogate": (file(pair("k", STRING, text(b"\xed\xa0\x80"))), "k is not UTF-8"),
    "array of 2^64-1 bytes": (file(array("k", U8, 2**64 - 1, b"")), "k has 18446744073709551615 elements"),
    "array of 2^61 numbers": (file(array("k", U64, 2**61, b"")), "k has 2305843009213693952 elements"),
    "array of 2^62 strings": (file(array("k", STRING, 2**62, b"")), "k has 4611686018427387904 elements"),
    "array longer than the file": (file(array("k", F64, 1_000_000, b"")), "k needs 8000000 bytes"),
    "array of strings longer than the file": (file(array("k", STRING, 1_000_000, b"")), "k needs 8 bytes"),
    "string in an array too long": (file(array("k", STRING, 2, text("a") + text("b", 2**40))), "k needs 1099511627776"),
    "string in an array not UTF-8": (file(array("k", STRING, 2, text("a") + text(b"\x80"))), "k is not UTF-8"),
    "array of unknown type": (file(array("k", 13, 1, bytes(8))), "k has the unknown value type 13"),
    "array of arrays": (file(array("k", ARRAY, 1, u32(U8) + u64(1) + b"1")), "k is an array of arrays"),
    "array without a count": (file(pair("k", ARRAY, u32(U8)), data=0, alignment=1), "k needs 8 bytes"),
    "alignment 0": (file(align(0)), "general.alignment is 0, not a power of two"),
    "alignment 13": (file(align(13)), "general.alignment is 13, not a power of two"),
    "alignment signed": (file(pair("general.alignment", I32, u32(32))), "general.alignment has type 5"),
    "alignment an array": (file(array("general.alignment", U32, 1, u32(32))), "general.alignment has type 9"),
    "alignment beyond the file": (file(align(2**31), tensors=(tensor(),)), "tensor t ends at byte 2147483680"),
    # Tensors.
    "tensor name of 64 bytes": (file(tensors=(tensor("n" * 64),)), "the name of tensor 0 is longer than 63 bytes"),
    "tensor name of 2^63 bytes": (file(tensors=(text("n", 2**63),), n_tensors=1), "needs 9223372036854775808 bytes"),
    "empty tensor name": (file(tensors=(tensor(""),)), "the name of tensor 0 is empty"),
    "tensor name with NUL": (file(tensors=(tensor("a\0b"),)), "the name of tensor 0 has unprintable"),
    "tensor name not UTF-8": (file(tensors=(tensor(b"\xfe"),)), "the name of tensor 0 is not UTF-8"),
    "tensor twice": (file(tensors=(tensor("a"), tensor("a", offset=32))), "duplicate tensor a"),
    "no axes": (file(tensors=(tensor(ne=()),)), "tensor t has 0 dimensions"),
    "five axes": (file(tensors=(tensor(ne=(1,) * 5),)), "tensor t has 5 dimensions"),
    "2^32-1 axes": (file(tensors=(text("t") + u32(2**32 - 1) + bytes(64),)), "tensor t has 4294967295 dimensions"),
    "row of 0": (file(tensors=(tensor(ne=(0,)),)), r"tensor t has the impossible shape \[0\]"),
    "axis of -1": (file(tensors=(tensor(ne=(2**64 - 1,)),)), "impossible shape"),
    "2^63 elements": (file(tensors=(tensor(ne=(2**32, 2**31)),)), "impossible shape"),
    "2^65 elements, 2 after wrapping": (file(tensors=(tensor(ne=(2**33, 2**31 + 1, 2)),)), "impossible shape"),
    "2^63-1 elements of 8 bytes": (file(tensors=(tensor(ne=(2**63 - 1,), kind=GGML_I64),)), "ends at byte 7378697629"),
    "bytes that wrap to 0": (file(tensors=(tensor(ne=(2**61,), kind=GGML_I64),)), "ends at byte 1844674407370955"),
    "sizes that overflow together": (
        file(tensors=(tensor("a", (2**63 - 64,), GGML_I8), tensor("b", (2**63 - 64,), GGML_I8, 2**63 - 64))),
        "tensor a ends at byte",
    ),
    "type removed from ggml": (file(tensors=(tensor(ne=(32,), kind=4),)), "tensor t has the unknown type 4"),
    "type of all ones": (file(tensors=(tensor(kind=2**32 - 1),)), "tensor t has the unknown type 4294967295"),
    "half a block of 32": (file(tensors=(tensor(ne=(16,), kind=GGML_Q4_0),)), "rows of 16 weights"),
    "half a block of 256": (file(tensors=(tensor(ne=(384,), kind=GGML_Q4_K),)), "not whole blocks of 256 .Q4_K"),
    "blocks across rows": (file(tensors=(tensor(ne=(16, 2), kind=GGML_Q8_0),)), "not whole blocks of 32 .Q8_0"),
    "offset of all ones": (file(tensors=(tensor(offset=2**64 - 1),)), "offset 18446744073709551615 of the data"),
    "offset not aligned": (file(tensors=(tensor("a"), tensor("b", offset=36))), "offset 36 of the data instead of 32"),
    "offset aligned to 8": (file(tensors=(tensor("a", (2,)), tensor("b", offset=8))), "offset 8 of the data instead"),
    "tensors overlap": (
        file(tensors=(tensor("a", (16,)), tensor("b", offset=32))),
        "offset 32 of the data instead of 64",
    ),
    "tensors on top": (file(tensors=(tensor("a"), tensor("b"))), "tensor b is at offset 0 of the data instead of 32"),
    "gap between tensors": (file(tensors=(tensor("a"), tensor("b", offset=64))), "offset 64 of the data instead of 32"),
    "gap before tensors": (file(tensors=(tensor("a", offset=32),)), "offset 32 of the data instead of 0"),
    "tensors in another order": (file(tensors=(tensor("a", offset=32), tensor("b"))), "tensor a is at offset 32"),
    "alignment 64 not kept": (
        file(align(64), tensors=(tensor("a"), tensor("b", offset=32)), alignment=64),
        "offset 32 of the data instead of 64",
    ),
    "data one byte short": (file(tensors=(tensor(),), data=31), "tensor t ends at byte 96, the file has 95"),
    "last tensor cut": (file(tensors=(tensor("a"), tensor("b", offset=32)), data=63), "tensor b ends at byte"),
    "no data at all": (file(tensors=(tensor(),), data=0), "tensor t ends at byte"),
    "offset missing": (file(tensors=(tensor()[:-8],), n_tensors=1, data=0, alignment=1), "tensor t needs 8 bytes"),
    "tensor cut in its shape": (
        file(tensors=(tensor(ne=(8, 8))[:-16],), data=0, alignment=1),
        "tensor t needs 8 bytes",
    ),
}
