"""Convert and combine RGB colors."""

import colorsys
from typing import NamedTuple


class Color(NamedTuple):
    """A color with components from 0 to 255."""

    red: int
    green: int
    blue: int

    @classmethod
    def from_hex(cls, text):
        """Parse a color such as ``#ff8800`` or its short form ``#f80``."""
        digits = text.lstrip("#")
        if len(digits) == 3:
            digits = "".join(2 * digit for digit in digits)
        if len(digits) != 6:
            raise ValueError(f"invalid color: {text!r}")
        return cls(*(int(digits[i:i + 2], 16) for i in (0, 2, 4)))

    def to_hex(self):
        """Return the color in the form ``#rrggbb``."""
        digits = ""
        for component in self:
            digits += f"{component:02x}"
        return f"#{digits}"

    def mix(self, other, weight=0.5):
        """Blend two colors. A weight of 0 returns this color and a weight of 1 the
        other one.
        """
        if not 0 <= weight <= 1:
            raise ValueError("weight must be between 0 and 1")
        components = []
        for mine, theirs in zip(self, other):
            components.append(round(mine + (theirs - mine) * weight))
        return Color(*components)

    def lighten(self, amount):
        """Return the color with its lightness increased by ``amount``, a fraction
        that may be negative.
        """
        hue, lightness, saturation = colorsys.rgb_to_hls(*(part / 255 for part in self))
        lightness = min(1.0, max(0.0, lightness + amount))
        rgb = colorsys.hls_to_rgb(hue, lightness, saturation)
        return Color(*(round(part * 255) for part in rgb))

    def luminance(self):
        """Return the relative luminance, from 0 for black to 1 for white."""
        linear = []
        for component in self:
            value = component / 255
            if value <= 0.03928:
                linear.append(value / 12.92)
            else:
                linear.append(((value + 0.055) / 1.055) ** 2.4)
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    """Return the contrast ratio of two colors, between 1 and 21."""
    lighter = max(first.luminance(), second.luminance())
    darker = min(first.luminance(), second.luminance())
    return (lighter + 0.05) / (darker + 0.05)
