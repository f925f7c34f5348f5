"""Signature edits: an argument or parameter was added or removed, and the next call no longer fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.next_edit.bindings import BindingIndex
from localdflash.code.next_edit.signatures import call_with, function_with
from localdflash.code.next_edit.source import ParsedSource
from tests.code.next_edit.marks import check


@pytest.mark.parametrize(
    "text",
    [
        # A new parameter, where something of that name is at hand.
        "def area(w«|, unit»):\n    return w\n\ndef f(unit):\n    return area(1‹|, unit›)\n",
        "class C:\n    def m(self, x«|, y»):\n        pass\n\n    def n(self, y):\n        self.m(1‹|, y›)\n",
        "class C:\n    def __init__(self, x«|, y»):\n        pass\n\ndef f(y):\n    return C(1‹|, y›)\n",
        # One parameter less.
        "def area(w«, unit|»):\n    return w\n\nprint(area(1‹, 2|›))\n",
        "def area(«unit, |»w):\n    return w\n\nprint(area(‹1, |›2))\n",
        # A call that fits again, and another that does not.
        "def area(w, unit):\n    return w\n\narea(1«|, 'm'»)\narea(2‹|, 'm'›)\n",
        "def area(w):\n    return w\n\narea(1«, 'm'|»)\narea(2‹, 'x'|›)\n",
    ],
)
def test_what_no_longer_fits_in_python(text: str) -> None:
    check("python", text)


@pytest.mark.parametrize(
    "text",
    [
        "function area(w«|, unit») {}\nfunction f(unit) { area(1‹|, unit›) }\n",
        "class A {\n  m(x«|, y») {}\n  n(y) { this.m(1‹|, y›) }\n}\n",
        "class A { constructor(x«|, y») {} }\nfunction f(y) { return new A(1‹|, y›) }\n",
        "function area(w«, unit|») {}\narea(1‹, 2|›);\n",
    ],
)
def test_what_no_longer_fits_in_javascript(text: str) -> None:
    for language in ("javascript", "typescript", "tsx"):
        check(language, text)


@pytest.mark.parametrize(
    "text",
    [
        "def area(w«|, unit»):\n    return w\n\narea(1)\n",  # nothing is called unit there
        "def area(w«|, unit=1»):\n    return w\n\nunit = 2\narea(1)\n",  # it need not be given
        "def area(w«|, unit»):\n    return w\n\nunit = 2\narea(*x)\n",  # nobody knows how many
        "def area(w«|, unit»):\n    return w\n\nunit = 2\no.area(1)\n",  # another area
        "if x:\n    def area(w«|, unit»): ...\nelse:\n    def area(w): ...\nunit = 1\narea(2)\n",
        "def area(w, unit=1):\n    return w\n\narea(1«|, 2»)\narea(2)\n",  # both fit
        "def area(w, unit):\n    return w\n\ndef f(x):\n    area(1«|, x»)\narea(2)\n",  # x is not known there
        "def area(w):\n    return w\n\narea(1«|, unit»)\n",  # a definition that does not fit is left alone
        "def area(w«|, a, b»):\n    return w\n\na = b = 1\narea(1)\n",
    ],
)
def test_nothing_is_proposed_where_it_would_be_a_guess(text: str) -> None:
    check("python", text)


PARAMETER = st.sampled_from(["a", "b", "c=1", "d=2"])


@given(
    st.lists(PARAMETER, unique=True, max_size=4),
    st.booleans(),
    st.lists(st.sampled_from(["e", "f=3"]), unique=True),
    st.booleans(),
    st.integers(0, 5),
    st.lists(st.sampled_from("abcdefg"), unique=True, max_size=4),
)
def test_whether_a_call_fits_is_what_python_says(
    plain: list[str], many: bool, named: list[str], anything: bool, count: int, keywords: list[str]
) -> None:
    plain.sort(key=lambda parameter: "=" in parameter)
    star = ["*r"] if many else ["*"] if named else []
    listed = [*plain, *star, *named, *(["**k"] if anything else [])]
    given_ = [*("1" for _ in range(count)), *(f"{keyword}=1" for keyword in keywords)]
    text = f"def function({', '.join(listed)}): pass\nfunction({', '.join(given_)})\n"
    try:
        exec(text, {})
        fits = True
    except TypeError:
        fits = False
    source = ParsedSource("python", text)
    definition, call = source.root.named_children
    parameters = definition.child_by_field_name("parameters")
    arguments = call.named_children[0].child_by_field_name("arguments")
    assert parameters
    assert arguments
    function, made = (
        function_with(source, parameters, as_member=False),
        call_with(source, BindingIndex(source), arguments),
    )
    assert function
    assert made
    assert function.fits(made.positional, made.keywords) == fits
