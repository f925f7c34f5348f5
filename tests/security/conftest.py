"""Fixtures of other folders: a valid GGUF file, llama.cpp's parser, the app over the embedded pair and on sockets."""

from tests.support.served import app, engine, live, metrics
from tests.weights.conftest import c_parser_accepts, ggml, small_gguf

__all__ = ["app", "c_parser_accepts", "engine", "ggml", "live", "metrics", "small_gguf"]
