"""Parse and produce HTTP cookies."""

from datetime import datetime, timedelta, timezone
from urllib.parse import quote, unquote

DATE_FORMAT = "%a, %d %b %Y %H:%M:%S GMT"


def parse_cookie_header(header):
    """Convert the value of a ``Cookie`` header to a dictionary. Parts without an
    equals sign are ignored, and the first of several values wins.
    """
    cookies = {}
    for part in header.split(";"):
        name, separator, value = part.strip().partition("=")
        if not separator or not name:
            continue
        cookies.setdefault(name, unquote(value.strip('"')))
    return cookies


def dump_cookie(name, value, max_age=None, path="/", secure=False, http_only=True):
    """Build the value of a ``Set-Cookie`` header."""
    parts = [f"{name}={quote(value, safe='')}"]
    if max_age is not None:
        expires = datetime.now(timezone.utc) + timedelta(seconds=max_age)
        parts.append(f"Max-Age={int(max_age)}")
        parts.append(f"Expires={expires.strftime(DATE_FORMAT)}")
    parts.append(f"Path={path}")
    if secure:
        parts.append("Secure")
    if http_only:
        parts.append("HttpOnly")
    return "; ".join(parts)


class CookieJar:
    """Remember the cookies that a server sets."""

    def __init__(self):
        self._cookies = {}

    def update(self, header):
        """Store the cookie from a ``Set-Cookie`` header, or delete it if its maximum
        age is not positive.
        """
        first, _, attributes = header.partition(";")
        name, _, value = first.strip().partition("=")
        for attribute in attributes.split(";"):
            key, _, number = attribute.strip().partition("=")
            if key.lower() == "max-age" and int(number) <= 0:
                self._cookies.pop(name, None)
                return
        self._cookies[name] = value

    def header(self):
        """Return the value of the ``Cookie`` header for the next request."""
        pairs = []
        for name in sorted(self._cookies):
            pairs.append(f"{name}={self._cookies[name]}")
        return "; ".join(pairs)
