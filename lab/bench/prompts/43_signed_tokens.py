"""Sign data so that a client can keep it but not change it."""

import base64
import hashlib
import hmac
import json
import time


class BadSignature(Exception):
    """A token was changed or signed with another key."""


class TokenExpired(BadSignature):
    """A token is valid but too old."""


def b64_encode(data):
    """Encode bytes for use in a URL, without padding."""
    encoded = base64.urlsafe_b64encode(data)
    stripped = encoded.rstrip(b"=")
    return stripped.decode("ascii")


def b64_decode(text):
    """Decode the result of ``b64_encode``."""
    padding = "=" * (-len(text) % 4)
    try:
        return base64.urlsafe_b64decode(text + padding)
    except ValueError as error:
        raise BadSignature("invalid encoding") from error


class Signer:
    """Create and check tokens with a secret key."""

    def __init__(self, secret, salt="token", clock=time.time):
        if len(secret) < 16:
            raise ValueError("the secret must have at least 16 characters")
        self._key = hashlib.sha256(f"{salt}:{secret}".encode("utf-8")).digest()
        self._clock = clock

    def _signature(self, payload):
        """Return the signature of an encoded payload."""
        digest = hmac.new(self._key, payload.encode("ascii"), hashlib.sha256)
        return b64_encode(digest.digest())

    def dumps(self, data):
        """Serialize ``data`` together with the current time and sign it."""
        content = {"data": data, "time": int(self._clock())}
        payload = b64_encode(json.dumps(content, sort_keys=True).encode("utf-8"))
        signature = self._signature(payload)
        return f"{payload}.{signature}"

    def loads(self, token, max_age=None):
        """Return the data of a token. Raise ``BadSignature`` if it was changed and
        ``TokenExpired`` if it is older than ``max_age`` seconds.
        """
        payload, separator, signature = token.partition(".")
        if not separator:
            raise BadSignature("the token has no signature")
        if not hmac.compare_digest(signature, self._signature(payload)):
            raise BadSignature("the signature does not match")
        content = json.loads(b64_decode(payload))
        age = self._clock() - content["time"]
        if max_age is not None and age > max_age:
            raise TokenExpired(f"the token is {int(age)} seconds old")
        return content["data"]
