"""Points, rectangles and polygons in the plane."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """A point with two coordinates."""

    x: float
    y: float

    def distance_to(self, other):
        """Return the straight-line distance to another point."""
        dx = self.x - other.x
        dy = self.y - other.y
        return math.hypot(dx, dy)

    def rotated(self, angle, center=None):
        """Return this point rotated around ``center`` by an angle in radians,
        counter-clockwise.
        """
        center = center or Point(0.0, 0.0)
        dx = self.x - center.x
        dy = self.y - center.y
        cosine = math.cos(angle)
        sine = math.sin(angle)
        return Point(center.x + dx * cosine - dy * sine, center.y + dx * sine + dy * cosine)


@dataclass(frozen=True)
class Rectangle:
    """An axis-aligned rectangle."""

    left: float
    top: float
    width: float
    height: float

    def contains(self, point):
        """Say whether a point lies inside of the rectangle or on its border."""
        if not self.left <= point.x <= self.left + self.width:
            return False
        if not self.top <= point.y <= self.top + self.height:
            return False
        return True

    def intersection(self, other):
        """Return the common part of two rectangles, or None if they are apart."""
        left = max(self.left, other.left)
        top = max(self.top, other.top)
        right = min(self.left + self.width, other.left + other.width)
        bottom = min(self.top + self.height, other.top + other.height)
        if right <= left or bottom <= top:
            return None
        return Rectangle(left, top, right - left, bottom - top)


def polygon_area(points):
    """Return the area of a simple polygon by the shoelace formula. The result does
    not depend on the direction in which the points are listed.
    """
    if len(points) < 3:
        return 0.0
    total = 0.0
    for current, following in zip(points, points[1:] + points[:1]):
        total += current.x * following.y
        total -= following.x * current.y
    return abs(total) / 2
