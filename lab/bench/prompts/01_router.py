"""Match request paths against patterns such as ``/users/<int:id>``."""

import re

CONVERTERS = {
    "int": (r"\d+", int),
    "str": (r"[^/]+", str),
    "path": (r".+", str),
}

PARAMETER = re.compile(r"<(?:(?P<type>\w+):)?(?P<name>\w+)>")


class NotFound(Exception):
    """Raised when no route matches a path."""


def compile_pattern(pattern):
    """Translate a route pattern into a regular expression and a dictionary that
    maps each parameter name to its converter.
    """
    regex = ""
    converters = {}
    position = 0
    for match in PARAMETER.finditer(pattern):
        expression, convert = CONVERTERS[match.group("type") or "str"]
        name = match.group("name")
        regex += re.escape(pattern[position:match.start()])
        regex += f"(?P<{name}>{expression})"
        converters[name] = convert
        position = match.end()
    regex += re.escape(pattern[position:])
    return re.compile(f"^{regex}$"), converters


class Router:
    """An ordered list of routes; the first one that matches wins."""

    def __init__(self):
        self.routes = []

    def add(self, pattern, handler, methods=("GET",)):
        """Register ``handler`` for every path that matches ``pattern``."""
        regex, converters = compile_pattern(pattern)
        allowed = {method.upper() for method in methods}
        route = (regex, converters, allowed, handler)
        self.routes.append(route)

    def match(self, method, path):
        """Find the handler for a request. Return it together with the converted
        parameters, or raise ``NotFound``.
        """
        for regex, converters, allowed, handler in self.routes:
            found = regex.match(path)
            if found is None or method not in allowed:
                continue
            arguments = {}
            for name, text in found.groupdict().items():
                arguments[name] = converters[name](text)
            return handler, arguments
        raise NotFound(f"{method} {path}")
