"""Renames: where they are proposed, and that accepted ones do not change what a program does."""

import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.code.next_edit.marks import all_proposed, check, proposed


@pytest.mark.parametrize(
    "text",
    [
        "def f(count):\n    x = «count|counted»\n    return ‹count|counted›\n",
        "def f(‹count|counted›):\n    return «count|counted»\n",  # back to the first place from the last
        "def f(a, «b|c»=1):\n    pass\n\nf(1, ‹b|c›=2)\ng(b=3)\n",
        "«LIMIT|MOST» = 3\n\ndef f(x):\n    return x < ‹LIMIT|MOST›\n",
        "def f(«n|size»):\n    return f'{‹n|size›} n'\n",
        "from m import «load|loads»\n\nx = ‹load|loads›(1)\n",
        "try:\n    pass\nexcept OSError as «e|error»:\n    print(‹e|error›)\n",
        "class C:\n    def «run|start»(self):\n        self.‹run|start›()\n",
        "class C:\n    def __init__(self):\n        self.«size|length» = 1\n\n    def f(self):\n"
        "        return self.‹size|length›\n",
        "match x:\n    case [«a|head», *b]:\n        print(‹a|head›, b)\n",
        "naïve_ä = 1\n«größe|länge» = naïve_ä\nprint('😋', ‹größe|länge›)\n",
    ],
)
def test_a_name_of_python_follows(text: str) -> None:
    check("python", text)


@pytest.mark.parametrize(
    "text",
    [
        "const f = («x|item») => ‹x|item› + 1;\n",
        "const «name|title» = 1;\nconst o = { ‹name|name: title› };\n",
        "const { «name|title» } = o;\nprint(‹name|title›);\n",
        "class A {\n  «run|start»() {}\n  f() { this.‹run|start›() }\n}\n",
        "class A {\n  #«n|size» = 1;\n  f() { return () => this.‹#n|#size› }\n}\n",
        "import { «a|b» as c } from 'x';\nc();\n",  # the name that another file gave it; nothing here has it
        "function f() { if (x) { var «a|first» = 1 } return ‹a|first› }\n",
    ],
)
def test_a_name_of_javascript_follows(text: str) -> None:
    for language in ("javascript", "typescript", "tsx"):
        check(language, text)


@pytest.mark.parametrize(
    "text",
    [
        "interface «Props|Options» { a: number }\nfunction f(p: ‹Props|Options›) {}\n",
        "function f<«T|Item»>(x: ‹T|Item›): T { return x }\n",
        "enum «Color|Colour» { Red }\nconst c = ‹Color|Colour›.Red;\n",
        "function f({ a, b: «c|third» }: X) { return ‹c|third› }\n",
    ],
)
def test_a_name_of_typescript_follows(text: str) -> None:
    for language in ("typescript", "tsx"):
        check(language, text)


def test_a_component_is_a_name_and_an_element_is_not() -> None:
    check("tsx", "function «Card|Panel»() {}\nconst x = <‹Card|Panel› />;\n")
    check("tsx", "const «div|part» = 1;\nconst x = <div />;\n")


@pytest.mark.parametrize(
    "text",
    [
        "def f(«count|total», o):\n    return o.count\n",  # an attribute of something else
        "def f(«count|total»):\n    return lambda count: count\n",  # shadowed
        "def f(«count|total»):\n    g(count=1)\n",  # the name of a parameter of g
        "def f(«count|total»):\n    pass\n\ndef g(count):\n    return count\n",
        "class C:\n    @staticmethod\n    def f(a):\n        a.x = 1\n        a.«x|xx» = 2\n        return a.x\n",
        "def f(count):\n    x = «count|zebra»\n    return count\n",  # a name that is nothing alike
        "def f():\n    x = 1\n    print(x)\n    «x|y» = 2\n    print(x)\n",  # a later assignment
        "def f(a, «b|a1»):\n    a1 = 1\n    return b + a1\n",  # would be captured
        "x = '«count|total»'\ncount = 1\nprint(count)\n",
        "from m import load\n\nx = «load|loads»(1)\nprint(load(2))\n",  # something else of the same file
        "from x import *\n\ny = «counted|yy»\nprint(counted)\n",
    ],
)
def test_nothing_is_proposed_where_it_would_be_wrong(text: str) -> None:
    check("python", text)


@pytest.mark.parametrize(
    "text",
    [
        "let «a|b» = 1;\n{ let a = 2; f(a) }\n",
        "function f(«a|b») { return x.a + { a: 1 }.a }\n",
        "const «a|b» = 1;\nexport { a };\n",  # other files know it by this name
        "class A { «run|start»() {} }\nnew A().run();\n",  # what is on the left is not known to be an A
        "class A { «run|start»() {} f() { return function () { this.run() } } }\n",
        "const o = { «name|title» };\nconst name = 1;\nf(name);\n",  # the property gets another name
    ],
)
def test_nothing_is_proposed_where_it_would_be_wrong_in_javascript(text: str) -> None:
    check("javascript", text)


NAMES = ("apple", "berry", "cherry")
NAME = st.sampled_from(NAMES)
LINES = (
    "{x} = {y} + 1",
    "{x} += 1",
    "out.append({x})",
    "out.append([{x} for {x} in range({y} % 3)])",
    "out.append([{x} + {y} for {x} in range(2)])",
    "out.append((lambda {x}: {x} + {y})(3))",
    "for {x} in range(2): out.append({x})",
    "def g({x}, k={y}):\n        {y} = {x}\n        out.append(({x}, {y}, k))\n    g(1)",
    "def h():\n        nonlocal {x}\n        {x} = 5\n    h()",
    "def m():\n        return {x}\n    out.append(m())",
    "if (n := {x}): out.append({{'{x}': {x}, 'n': n}})",
    "class K:\n        {x} = {y}\n    out.append(K.{x})",
    "def p():\n        global {x}\n        {x} = 7\n    p()",
    "import math as {x}; {x} = 2",
)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Return a program that appends to `out`."""
    lines = [line.format(x=draw(NAME), y=draw(NAME)) for line in draw(st.lists(st.sampled_from(LINES), max_size=6))]
    first = [f"{name} = {number}" for number, name in enumerate(NAMES)]
    outer = "\n".join(f"{name} = {number + 10}" for number, name in enumerate(NAMES))
    body = "\n    ".join([*first, *lines, *(f"out.append({name})" for name in NAMES)])
    return f"out = []\n{outer}\n\ndef f():\n    {body}\n\nf()\nout += [{', '.join(NAMES)}]\n"


def ran(program: str) -> Any:
    """Return what a program appends, or the type of its error."""
    scope: dict[str, Any] = {}
    try:
        exec(compile(program, "program", "exec"), scope)
    except (NameError, SyntaxError, TypeError) as error:
        return type(error)
    return scope["out"]


@given(programs(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_program_does_the_same_once_all_is_accepted(program: str, data: st.DataObject) -> None:
    assume(isinstance(ran(program), list))
    places = [found.start() for found in re.finditer("|".join(NAMES), program)]
    at = data.draw(st.sampled_from(places))
    edited = program[:at] + "new_" + program[at:]
    if proposed("python", [program, edited]) is not None:
        assert ran(all_proposed("python", [program, edited])) == ran(program)
