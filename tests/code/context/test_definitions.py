"""Definitions per language; for Python against its own parser."""

import textwrap

import pytest

from localdflash.code.context import definitions as module
from localdflash.code.context.definitions import find_definitions

SOURCES = {
    "python": """
        X: int = 1
        X = 2
        a, b = 1, 2
        if X:
            def inner(): pass
        @decorated
        async def f(a,
                    b) -> int:
            '''What it does.

            More.
            '''
            def local(): pass
        class A(B):
            x = 1
            def m(self): pass
            def __len__(self): return 1
        """,
    "javascript": """
        const q = require('./z');
        export const f = (a) => a, K = 3;
        export default function g(a) { function local() {} }
        class A extends B { x = 1; m(a) {} }
        const { destructured } = q;
        """,
    "typescript": """
        export interface I { a: number }
        export type U = string;
        enum E { A }
        namespace N { export function k(): void {} }
        abstract class Q { abstract m(): void }
        declare function df(a: number): string;
        """,
    "tsx": "export const View = (p: Props) => <p>{p.x}</p>;",
    "go": """
        package p
        const A = 1
        var ( B int; C = 2 )
        type T struct { x int }
        func (t *T) M(a int) error { return nil }
        func F() {}
        """,
    "rust": """
        pub struct S { a: u8 }
        impl S { pub fn m(&self) -> u8 { 1 } }
        trait T { fn k(&self); }
        pub const K: u8 = 1;
        macro_rules! mm { () => {} }
        mod i { fn z() {} }
        """,
    "c": """
        #ifndef X
        #define M 1
        #define F(x) x
        int f(int a);
        static int *g(void) { return 0; }
        struct S { int a; };
        struct S later;
        typedef struct { int b; } T;
        const int K = 1;
        #endif
        """,
    "cpp": """
        namespace n { template<class T> class C : D { public: int m(int a) { return 1; } void k(); int field; }; }
        int A::f() const { return 1; }
        using U = int;
        extern "C" { void z(void); }
        """,
    "java": """
        public class A extends B { static final int K = 1; A() {} int m(int a) { return 1; } }
        interface I { void k(); }
        enum E { X; void z() {} }
        record R(int a) {}
        """,
    "lua": """
        local u = require('a.b')
        local function g() end
        function M:h(x) return x end
        M.k = function() end
        """,
}
FOUND = {
    "python": "X:constant inner:function f:function A:class m:method",
    "javascript": "q:constant f:function K:constant g:function A:class m:method",
    "typescript": "I:type U:type E:type k:function Q:class m:method df:function",
    "tsx": "View:function",
    "go": "A:constant B:constant C:constant T:type M:method F:function",
    "rust": "S:type m:method T:type k:method K:constant mm:constant z:function",
    "c": "M:constant F:constant f:function g:function S:type later:constant T:type K:constant",
    "cpp": "C:class m:method k:method f:function U:type z:function",
    "java": "A:class m:method I:type k:method E:type z:method R:type",
    "lua": "u:constant g:function h:function k:constant",
}


TEXTS = {  # of some of them
    ("python", "f"): "async def f(a,\n            b) -> int:\n    '''What it does.'''",
    ("python", "A"): "class A(B):\n    x = 1\n    def m(self): pass\n    def __len__(self): return 1",
    ("javascript", "g"): "function g(a)",
    ("go", "M"): "func (t *T) M(a int) error",
    ("c", "g"): "static int *g(void)",
    ("lua", "h"): "function M:h(x)",
}


@pytest.mark.parametrize("language", SOURCES)
def test_names_kinds_and_texts(language: str) -> None:
    found = find_definitions("p", language, textwrap.dedent(SOURCES[language]))
    assert " ".join(f"{one.name}:{one.kind}" for one in found) == FOUND[language]
    texts = {(language, one.name): one.text for one in reversed(found)}
    expected = {key: text for key, text in TEXTS.items() if key[0] == language}
    assert expected.items() <= texts.items()


def test_deep_nesting_and_other_input_is_bounded() -> None:
    for text in ("class A:\n", "(" * 50_000, "if x:\n" + " " * 9 + "x\n", "{" * 20_000, "\0", ""):
        for language in ("python", "cpp", "typescript", "cobol"):
            assert len(find_definitions("p", language, text)) <= 1
    text = "".join(f"namespace n{at} {{ " for at in range(3_000)) + "int f() { return 1; }" + " }" * 3_000
    assert [one.name for one in find_definitions("p", "cpp", text)] == ["f"]  # deeper than the stack
    assert len(find_definitions("p", "python", "def f(): pass\n" * 5_000)) == module.MAX_DEFINITIONS
    long = ", ".join(f"argument{at}" for at in range(500))
    assert all(
        len(one.text) <= module.MAX_TEXT_CHARS for one in find_definitions("p", "python", f"def f({long}): pass")
    )
