import pytest

from localdflash.code.context.imports import parse_imports


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("python", "from a.b import c as d", [("a/b.py", ("c",)), ("a/b/c.py", ())]),
        ("python", "from ..a import c", [("./../a.py", ("c",)), ("./../a/c.py", ())]),
        ("python", "try:\n    import a\nexcept ImportError:\n    import b", [("a.py", ()), ("b.py", ())]),
        ("javascript", "import d, {a as b, c} from './x'", [("./x", ("d", "a", "c"))]),
        ("javascript", "import react from 'react'", []),
        ("typescript", "import type {T} from './t'\nexport {u} from './u'", [("./t", ("T",)), ("./u", ())]),
        ("go", 'import (\n "fmt"\n u "x.org/a/util"\n)', [("fmt/", ()), ("x.org/a/util/", ())]),
        ("rust", "use crate::a::{b, C};", [("src/a.rs", ("b", "C"))]),
        ("rust", "use super::x::Y;\nmod foo;", [("./x/Y.rs", ("Y",)), ("./foo.rs", ())]),
        ("c", '#ifndef A\n#include "x/a.h"\n#endif', [("./x/a.h", ())]),
        ("java", "import a.b.C;\nimport static a.D.e;", [("a/b/C.java", ("C",)), ("a/D.java", ("e",))]),
        ("lua", "local u = require('a.b')", [("a/b.lua", ())]),
        ("", "import a", []),
    ],
)
def test_imports(language: str, text: str, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert [(one.paths[0], one.names) for one in parse_imports(language, text)] == expected
