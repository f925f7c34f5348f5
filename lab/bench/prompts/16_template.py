"""Fill placeholders like ``{{ user.name|upper }}`` in a text."""

import html
import re

PLACEHOLDER = re.compile(r"\{\{\s*(.+?)\s*\}\}")


class TemplateError(Exception):
    """A template refers to something that does not exist."""


class Environment:
    """Holds the filters that templates may use."""

    def __init__(self, autoescape=True):
        self.autoescape = autoescape
        self.filters = {
            "upper": str.upper,
            "lower": str.lower,
            "trim": str.strip,
            "escape": html.escape,
        }

    def add_filter(self, name, function):
        """Make ``function`` available to templates under ``name``."""
        if not name.isidentifier():
            raise ValueError(f"invalid filter name: {name!r}")
        if name in self.filters:
            raise ValueError(f"filter {name!r} already exists")
        self.filters[name] = function

    def lookup(self, path, context):
        """Resolve a dotted path. Each part is tried as a key and then as the name of
        an attribute.
        """
        value = context
        for part in path.split("."):
            if isinstance(value, dict) and part in value:
                value = value[part]
            elif hasattr(value, part):
                value = getattr(value, part)
            else:
                raise TemplateError(f"undefined name: {path}")
        return value

    def evaluate(self, expression, context):
        """Look up the name at the start of an expression and apply its filters."""
        path, *filters = [part.strip() for part in expression.split("|")]
        value = self.lookup(path, context)
        for name in filters:
            if name not in self.filters:
                raise TemplateError(f"unknown filter: {name}")
            value = self.filters[name](str(value))
        if self.autoescape and "escape" not in filters:
            value = html.escape(str(value))
        return str(value)

    def render(self, template, **context):
        """Replace all placeholders in ``template`` and return the result."""
        pieces = []
        position = 0
        for match in PLACEHOLDER.finditer(template):
            pieces.append(template[position:match.start()])
            pieces.append(self.evaluate(match.group(1), context))
            position = match.end()
        pieces.append(template[position:])
        return "".join(pieces)
