"""The daemon's HTTP app: a table of all paths and their handlers."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import get_type_hints

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from localdflash.base.errors import LocaldflashError
from localdflash.server.activity import Activity
from localdflash.server.api import (
    anthropic_api,
    complete_endpoint,
    control,
    llama_server_api,
    openai_api,
    responses_api,
)
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_responses import on_error
from localdflash.server.api.metrics import Metrics
from localdflash.server.api.request_body import read
from localdflash.server.engines import Engines
from localdflash.server.tcp import TcpPort

ROUTES: dict[str, dict[str, Callable[..., Awaitable[Response]]]] = {
    "GET": {
        "/v1/models": control.models,
        "/models": control.models,
        "/v1/models/{model:path}": control.model,
        "/props": llama_server_api.props,
        "/slots": llama_server_api.slots,
        "/health": control.health,
        "/v1/health": control.health,
        "/metrics": control.metrics,
        "/ps": control.ps,
    },
    "POST": {
        "/v1/chat/completions": openai_api.chat,
        "/v1/chat/completions/input_tokens": openai_api.count_input_tokens,
        "/chat/completions": openai_api.chat,
        "/v1/completions": openai_api.completions,
        "/completions": openai_api.completions,
        "/v1/responses": responses_api.responses,
        "/v1/messages": anthropic_api.messages,
        "/v1/messages/count_tokens": anthropic_api.count_tokens,
        "/complete": complete_endpoint.complete,
        "/infill": llama_server_api.infill,
        "/completion": llama_server_api.completion,
        "/tokenize": llama_server_api.tokenize,
        "/detokenize": llama_server_api.detokenize,
        "/apply-template": openai_api.apply_template,
        "/v1/embeddings": openai_api.embeddings,
        "/embeddings": openai_api.embeddings,
        "/embedding": openai_api.embeddings,
        **dict.fromkeys(("/rerank", "/reranking", "/v1/rerank", "/v1/reranking"), openai_api.embeddings),
        "/listen": control.listen,
        "/load": control.load,
        "/stop": control.stop,
    },
}


def _endpoint(handler: Callable[..., Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler as an endpoint. If it has a parameter `body`, pass the request's body as the annotated type."""
    body_type = get_type_hints(handler).get("body")

    async def endpoint(http: Request) -> Response:
        body = {"body": await read(http, body_type)} if body_type else {}
        return await handler(http, http.app.state.shared, **body)

    return endpoint


def create_app(
    engines: Engines,
    metrics: Metrics | None = None,
    *,
    stop: Callable[[], None] | None = None,
    listen: Callable[[TcpPort], AsyncGenerator[str]] | None = None,
) -> Starlette:
    """Create the HTTP app. POST /stop calls `stop`; POST /listen iterates over `listen`, which yields a port's URL."""
    metrics = metrics or Metrics()
    activity = Activity(metrics)
    metrics.watch(engines)
    app = Starlette(
        routes=[
            Route(path, _endpoint(handler), methods=[method])
            for method, handlers in ROUTES.items()
            for path, handler in handlers.items()
        ],
        middleware=[Middleware(activity.wrap)],
        exception_handlers={HTTPException: on_error, LocaldflashError: on_error},
    )
    app.router.redirect_slashes = False
    app.state.shared = AppState(engines, metrics, activity, stop, listen)
    return app
