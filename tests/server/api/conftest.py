# ruff: noqa: F401
"""Fixtures: the app over the embedded pair in this process and on sockets, and vocabularies of model families."""

from tests.support.chat_formats import tool_vocabularies, vocabularies
from tests.support.served import app, client, client_of, engine_set, filled, live, metrics, plain, slow, worker
from tests.text.conftest import make_vocabulary, oracle
