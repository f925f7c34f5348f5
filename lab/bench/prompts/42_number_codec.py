"""Encode integers as short strings and compact bytes."""

import string

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
POSITIONS = {character: index for index, character in enumerate(ALPHABET)}


class DecodeError(ValueError):
    """The encoded data is damaged."""


def encode_base62(number):
    """Return a non-negative integer as a string of letters and digits."""
    if number < 0:
        raise ValueError("number must not be negative")
    if number == 0:
        return ALPHABET[0]
    digits = []
    while number:
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def decode_base62(text):
    """Convert the result of ``encode_base62`` back to an integer."""
    if not text:
        raise DecodeError("empty string")
    number = 0
    for character in text:
        if character not in POSITIONS:
            raise DecodeError(f"invalid character {character!r}")
        number = number * len(ALPHABET) + POSITIONS[character]
    return number


def encode_varint(number):
    """Return a non-negative integer as bytes that hold seven bits each. The highest
    bit of a byte says that more bytes follow.
    """
    if number < 0:
        raise ValueError("number must not be negative")
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def decode_varint(data, offset=0):
    """Read an integer from ``data`` at ``offset`` and return it together with the
    position of the byte that follows.
    """
    number = 0
    shift = 0
    while True:
        if offset >= len(data):
            raise DecodeError("unexpected end of data")
        byte = data[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
        shift += 7


def zigzag(number):
    """Map signed integers to unsigned ones so that small numbers stay small."""
    if number >= 0:
        return 2 * number
    return -2 * number - 1
