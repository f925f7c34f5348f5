"""llama-server's POST /tokenize and /detokenize."""

import asyncio

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.request_body import read
from localdflash.server.api.responses import json_response
from localdflash.server.api.schemas import DetokenizeRequest, TokenizeRequest
from localdflash.text.tokenizer import Tokenizer


async def tokenize(http: HttpRequest) -> Response:
    """The ids of a text."""
    state: AppState = http.app.state.shared
    body = await read(http, TokenizeRequest)
    tokenizer = (await state.ready(state.engines.main)).tokenizer
    ids = await asyncio.to_thread(_ids, tokenizer, body)
    if body.with_pieces:
        return json_response({"tokens": [{"id": token, "piece": _piece(tokenizer, token)} for token in ids]})
    return json_response({"tokens": ids})


async def detokenize(http: HttpRequest) -> Response:
    """The text of ids."""
    state: AppState = http.app.state.shared
    body = await read(http, DetokenizeRequest)
    tokenizer = (await state.ready(state.engines.main)).tokenizer
    if strange := [token for token in body.tokens if token >= tokenizer.vocab_size]:
        told = f"tokens: {strange[0]} is no token of this model, which has {tokenizer.vocab_size}"
        raise ApiError(400, told, param="tokens", code="invalid_value")
    data = b"".join(tokenizer.piece(token, special=True) for token in body.tokens)
    return json_response({"content": data.decode("utf-8", "replace")})


def _ids(tokenizer: Tokenizer, body: TokenizeRequest) -> list[int]:
    parts = tokenizer.split_markers(body.content) if body.parse_special else [body.content]
    ids = [token for part in parts for token in (tokenizer.encode(part) if isinstance(part, str) else [part])]
    bos = tokenizer.bos()
    return [bos, *ids] if body.add_special and bos is not None else ids


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """A token as text, or as bytes if it is a part of a character."""
    data = tokenizer.piece(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
