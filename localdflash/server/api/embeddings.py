"""Embeddings, which are not offered: whoever asks for them is told so."""

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.server.api.http_errors import ApiError

WHY = (
    "embeddings are not offered: the models here are trained to write, and their last states tell texts apart badly;"
    " take a server with a model that is made for it"
)


async def embeddings(_: HttpRequest) -> Response:
    """Raise the ApiError that says why."""
    raise ApiError(404, WHY, code="not_offered")
