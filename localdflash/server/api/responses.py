"""JSON responses."""

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(body: Any, status: int = 200) -> Response:
    """A body as JSON; NaN and infinities, which JSON lacks, become null."""
    return Response(msgspec.json.encode(body), status, media_type="application/json")
