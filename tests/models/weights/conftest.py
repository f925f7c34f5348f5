"""Valid model files, written by the reference writers, and llama.cpp's own GGUF parser as an oracle."""

from tests.support.gguf_files import c_parser_accepts, ggml, small_gguf

__all__ = ["c_parser_accepts", "ggml", "small_gguf"]
