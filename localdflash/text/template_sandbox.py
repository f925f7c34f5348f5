"""Jinja environment for templates from model files: no escape, hang or exhausted memory.

This is jinja2's immutable sandbox with a `RenderBudget` and only the filters and string methods of chat templates.
Operations that can multiply text (`"a" * n`, `replace`, `join`) are charged in advance.
"""

import re
import time
from collections.abc import Callable
from functools import wraps
from types import CodeType
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS, do_indent, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from localdflash.text.user_text import Disguise

# fmt: off
_FILTERS = frozenset({
    "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length", "list",
    "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "title",
    "trim", "unique", "upper",
})
_STRING_METHODS = frozenset({
    "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit", "islower",
    "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper",
})
# fmt: on
_PLAIN_FIELDS = re.compile(r"(?:[^{}]|\{\d*\})*")
_MAX_INDENT = 16  # columns
_ITEM_COST = 64  # characters charged for an item of a list or a dict
_MAX_INTEGER_BITS = 4096


class BudgetError(Exception):
    """The template exceeded its budget of characters or seconds."""


class RenderBudget:
    """Budget of one rendering; its time starts now."""

    def __init__(self, characters: int, seconds: float) -> None:
        self._characters = characters
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def spend(self, characters: int) -> None:
        """Charge for that many characters or list items; BudgetError if the budget is exceeded."""
        self._characters -= characters
        if self._characters < 0:
            raise BudgetError("builds too much text")
        if time.monotonic() > self._deadline:
            raise BudgetError(f"takes longer than {self._seconds:g} s")


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja environment of one rendering, or to compile templates with."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: RenderBudget, disguise: Disguise) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self._charge_output,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self._spend = budget.spend
        self._disguise = disguise
        custom = {
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "safe": str,
            "string": self.concatenated,
            "tojson": self._tojson,
        }
        self.filters = {name: self._charge_filter(FILTERS[name]) for name in _FILTERS} | custom
        self.globals = {name: self.globals[name] for name in ("dict", "namespace", "range")}

    def compile_template(self, source: str) -> CodeType:
        """Compile a template to code that charges the budget of the environment that runs it."""
        tree = _ChargeInserter().visit(self.parse(source))
        tree.set_environment(self)
        return self.compile(tree)

    def load(self, code: CodeType) -> Template:
        """Return the template, bound to this environment."""
        return Template.from_code(self, code, self.make_globals(None))

    # Called by compiled templates.

    def charge_loop(self, characters: int) -> None:
        """Charge for one iteration of a loop that contains this much template text."""
        self._spend(1 + characters)

    def charge_display(self, value: Any) -> Any:
        """Charge for `[a, b]`, `(a, b)` or `{a: b}`; return the value."""
        self._spend(_text_cost(value))
        return value

    def charge_slice(self, value: Any) -> Any:
        """Charge for the value of `x[a:b]`; return the value."""
        self._spend(_shallow_cost(value))
        return value

    def concatenated(self, *parts: Any) -> str:
        """Evaluate `a ~ b`."""
        self._spend(sum(map(_text_cost, parts)))
        return str(self._disguise.recognise("".join(map(str, parts))))

    def _charge_result(self, value: Any) -> Any:
        self._spend(_shallow_cost(value))
        return self._disguise.recognise(value)

    @pass_context  # so that jinja2 does not call the method at compile time
    def _charge_output(self, _context: Context, value: Any) -> Any:
        self._spend(_text_cost(value))
        return value

    # Called by jinja2.

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Evaluate `left operator right` for `+`, `*` and `%`; SecurityError for `**` and for `%` on text."""
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            raise SecurityError(f"the operator {operator} is not allowed in templates")
        if operator == "*":
            self._spend(_product_cost(left, right))
        return self._charge_result(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # as in jinja2
        """Make a call; charge for its result and, for a string's method, in advance."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = __self._charge_in_advance(owner, __obj.__name__, args)
        return __self._charge_result(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read this attribute."""
        if isinstance(obj, str):
            return attr in _STRING_METHODS
        return not isinstance(obj, int | float | bytes) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return `format` of a string whose fields have no width, attribute or conversion; None for other values."""
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None
        text = value.__self__
        if type(text) is not str or not _PLAIN_FIELDS.fullmatch(text):
            raise SecurityError("format() takes plain {} fields only")

        def charged(*args: Any) -> str:
            self._spend(len(text) + text.count("{") * sum(map(_text_cost, args)))
            return formatted(*args)

        return charged

    def _charge_in_advance(self, text: str, method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Charge for a call of a string's method in advance; return its arguments, the items of a `join` as a list."""
        self._spend(len(text))
        if method == "replace" and len(args) > 1:
            self._spend(text.count(args[0]) * _shallow_cost(args[1]))
        if method != "join" or not args:
            return args
        items = list(args[0])
        self._spend(_joined_cost(text, items))
        return (items,)

    def _replace(self, value: Any, old: Any, new: Any, count: int = -1) -> str:
        text, old, new = self.concatenated(value), str(old), str(new)
        self._spend(text.count(old) * len(new))
        return text.replace(old, new, count)

    def _join(self, value: Any, d: str = "", attribute: str | int | None = None) -> str:
        items = list(value) if attribute is None else list(map(make_attrgetter(self, attribute), value))
        self._spend(_joined_cost(d, items))
        return str(d).join(map(str, items))

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        self._spend((1 + _MAX_INDENT) * _text_cost(value))
        if indent is not None and indent > _MAX_INDENT:
            raise SecurityError(f"tojson indents by at most {_MAX_INDENT}")
        options = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
        return self._disguise.to_json(value, **options)

    def _indent(self, s: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
        if not isinstance(width, int) or width > _MAX_INDENT:
            raise SecurityError(f"indent takes a width of at most {_MAX_INDENT}")
        text = self.concatenated(s)
        self._spend(_MAX_INDENT * text.count("\n"))
        return do_indent(text, width, first, blank)

    def _charge_filter(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            return self._charge_result(function(*args, **kwargs))

        return charged


class GenerationTag(Extension):
    """The tag `{% generation %}…{% endgeneration %}`, which marks answers for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _ChargeInserter(NodeTransformer):
    """Transformer that makes loops, list, tuple and dict displays, slices and `~` charge the environment."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  # as jinja2 names visitors
        self.generic_visit(node)
        size = sum(len(data.data) for data in nodes.Output(node.body).find_all(nodes.TemplateData))
        node.body.insert(0, nodes.ExprStmt(_environment_call("charge_loop", nodes.Const(size)), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _environment_call("concatenated", *node.nodes)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _environment_call("charge_display", node)

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _environment_call("charge_display", node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _environment_call("charge_slice", node) if isinstance(node.arg, nodes.Slice) else node


def _environment_call(method: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None, lineno=args[0].lineno)


def _shallow_cost(value: Any) -> int:
    """Return a value's cost in characters, not counting what its items contain."""
    if isinstance(value, str):
        return len(value)
    return 1 + _ITEM_COST * len(value) if isinstance(value, list | tuple | dict) else 1


def _text_cost(value: Any) -> int:
    """Return a value's cost in characters, nested items included; SecurityError if it is neither text nor data."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return 1 + sum(_ITEM_COST + _text_cost(key) + _text_cost(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 1 + sum(_ITEM_COST + _text_cost(item) for item in value)
    if value is None or isinstance(value, int | float | range | Undefined):
        return 1
    raise SecurityError(f"a {type(value).__name__} is not text")


def _joined_cost(separator: Any, items: list[Any] | tuple[Any, ...]) -> int:
    return sum(map(_text_cost, items)) + len(items) * _shallow_cost(separator)


def _product_cost(left: Any, right: Any) -> int:
    if isinstance(left, str | list | tuple):
        left, right = right, left
    if not isinstance(left, int):
        return 1
    if not isinstance(right, int):
        return max(left, 0) * _shallow_cost(right)
    if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
        raise SecurityError(f"a number of more than {_MAX_INTEGER_BITS} bits")
    return 1
