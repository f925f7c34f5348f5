"""A client of the daemon, or of any other OpenAI-compatible server: JSON in, JSON or a stream of it out.

What the server refuses is raised as the error that the engine would have raised in this process, exit code included;
a connection that breaks is EngineGone. Closing a stream closes its connection, which cancels the request.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx2

from localdflash.errors import EngineGone, LocaldflashError, UsageError
from localdflash.files import paths
from localdflash.server.refusals import Json, error_of, json_object, refusal
from localdflash.server.sockets import is_listening

CONNECT = 5.0  # seconds
KEPT = 30.0  # seconds that an idle connection is kept; less than the daemon keeps it
LARGEST_EVENT = 16_000_000  # bytes
NATIVE = "http://localdflash"  # a Unix socket has no host, but a request names one


class Client:
    """One server. Close it, or use it as a context manager. `place` is what messages call it."""

    def __init__(self, http: httpx2.Client, place: str) -> None:
        self._http, self.place = http, place

    @classmethod
    def of_socket(cls, path: Path) -> Self:
        """The daemon at a Unix socket."""
        limits = httpx2.Limits(keepalive_expiry=KEPT)
        transport = httpx2.HTTPTransport(uds=str(path), limits=limits, verify=False, trust_env=False)
        timeout = httpx2.Timeout(None, connect=CONNECT)
        return cls(httpx2.Client(transport=transport, base_url=NATIVE, timeout=timeout), "the engine")

    @classmethod
    def of_url(cls, url: str, key: str = "") -> Self:
        """Any OpenAI-compatible server; UsageError where that is no http address. `/v1` at its end is optional."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r}: not the address of a server, such as http://127.0.0.1:8080")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        base = url.rstrip("/").removesuffix("/v1")
        timeout = httpx2.Timeout(None, connect=CONNECT)
        return cls(httpx2.Client(base_url=base, headers=headers, timeout=timeout), base)

    def get(self, path: str, timeout: float | None = None) -> Json:
        """GET; `timeout` in seconds."""
        return self._json("GET", path, None, timeout)

    def get_text(self, path: str) -> str:
        """GET of something that is no JSON."""
        with self._translated():
            response = self._http.get(path)
            _check(response)
            return response.text

    def health(self) -> Json:
        """What /health says, whatever its status."""
        with self._translated():
            return json_object(self._http.get("/health", timeout=CONNECT).text)

    def post(self, path: str, body: Mapping[str, object], timeout: float | None = None) -> Json:
        """POST; `timeout` in seconds."""
        return self._json("POST", path, body, timeout)

    def stream(self, path: str, body: Mapping[str, object]) -> Generator[Json, None, None]:
        """POST, and the events of the answer as they come; EngineGone where it has no end."""
        with self._translated(), self._http.stream("POST", path, json=body) as response:
            _check(response)
            for event in httpx2.EventSource(response, LARGEST_EVENT):
                if event.data == "[DONE]":
                    return
                content = json_object(event.data)
                if "error" in content:
                    raise error_of(content, 500)
                yield content
                if content.get("stop") is True:  # how /infill ends
                    return
        raise EngineGone(f"{self.place} went away in the middle of an answer")

    def close(self) -> None:
        """Close the connections, which cancels what runs on them."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _json(self, method: str, path: str, body: Mapping[str, object] | None, timeout: float | None) -> Json:
        limits = self._http.timeout if timeout is None else httpx2.Timeout(timeout)
        with self._translated():
            response = self._http.request(method, path, json=body, timeout=limits)
            _check(response)
            return json_object(response.text)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise our errors instead of httpx's."""
        try:
            yield
        except httpx2.TimeoutException:
            raise EngineGone(f"{self.place} does not answer") from None
        except httpx2.SSEError as error:
            raise LocaldflashError(f"{self.place}: not a stream of events: {error}") from None
        except httpx2.TransportError as error:
            raise EngineGone(f"{self.place} went away: {error or type(error).__name__}") from None
        except (httpx2.DecodingError, httpx2.InvalidURL) as error:
            raise LocaldflashError(f"{self.place}: {error}") from None


def find() -> Client | None:
    """A client of the daemon that runs, or None. Nothing is started; a daemon that is about to leave may still do."""
    path = paths.engine_socket()
    try:
        paths.check_private(path.parent)
    except FileNotFoundError:
        return None
    if not is_listening(path):
        return None
    client = Client.of_socket(path)
    try:
        client.health()
    except EngineGone:
        client.close()
        return None
    except BaseException:
        client.close()
        raise
    return client


def _check(response: httpx2.Response) -> None:
    """Raise what the server says went wrong."""
    if response.is_success:
        return
    raise refusal(response.read().decode("utf-8", "replace"), response.status_code)
