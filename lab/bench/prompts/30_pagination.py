"""Cut long lists into pages."""

import math
from dataclasses import dataclass, field


class InvalidPage(ValueError):
    """The requested page does not exist."""


@dataclass
class Page:
    """One page of a list and its place among the others."""

    number: int
    pages: int
    items: list = field(default_factory=list)

    @property
    def has_previous(self):
        return self.number > 1

    @property
    def has_next(self):
        return self.number < self.pages

    def links(self, url):
        """Return the addresses of the first, previous, next and last page. Pages
        that do not exist are left out.
        """
        links = {"first": f"{url}?page=1", "last": f"{url}?page={self.pages}"}
        if self.has_previous:
            links["previous"] = f"{url}?page={self.number - 1}"
        if self.has_next:
            links["next"] = f"{url}?page={self.number + 1}"
        return links


class Paginator:
    """Divide a sequence into pages of equal size."""

    def __init__(self, items, per_page=20):
        """Remember the items; ``per_page`` must be positive."""
        if per_page < 1:
            raise ValueError("per_page must be at least 1")
        self.items = items
        self.per_page = per_page
        self.count = len(items)
        self.pages = max(1, math.ceil(self.count / per_page))

    def page(self, number):
        """Return the page with the given number, which counts from 1."""
        if not 1 <= number <= self.pages:
            raise InvalidPage(f"page {number} is not between 1 and {self.pages}")
        start = (number - 1) * self.per_page
        stop = min(start + self.per_page, self.count)
        items = list(self.items[start:stop])
        return Page(number, self.pages, items)

    def __iter__(self):
        for number in range(1, self.pages + 1):
            yield self.page(number)


def visible_numbers(current, pages, around=2):
    """Return the page numbers to show in a navigation bar. The first and the last
    page are always shown and None stands for a gap.
    """
    shown = []
    for number in range(1, pages + 1):
        if number in (1, pages) or abs(number - current) <= around:
            shown.append(number)
        elif shown[-1] is not None:
            shown.append(None)
    return shown
