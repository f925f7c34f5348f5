"""Valid model files, written by the reference writers, and llama.cpp's own GGUF parser as an oracle."""

from tests.support.gguf_files import c_parser_accepts, ggml, random_blocks, small_gguf

__all__ = ["c_parser_accepts", "ggml", "random_blocks", "small_gguf"]
