"""The app over the embedded pair, asked in this process and on sockets."""

from tests.support.served import app, client, client_of, engine_set, filled, live, metrics, plain, slow, worker

__all__ = ["app", "client", "client_of", "engine_set", "filled", "live", "metrics", "plain", "slow", "worker"]
