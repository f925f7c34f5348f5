"""Fixtures of other folders: a valid GGUF file, llama.cpp's parser, the app over the embedded pair and on sockets."""

from tests.support.gguf_files import c_parser_accepts, ggml, small_gguf
from tests.support.served import app, engine_set, live, metrics, worker

__all__ = ["app", "c_parser_accepts", "engine_set", "ggml", "live", "metrics", "small_gguf", "worker"]
