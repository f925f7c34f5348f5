"""The app over the embedded pair, asked in this process and on sockets."""

from tests.support.served import app, client, client_of, filled, live, metrics, plain, worker

__all__ = ["app", "client", "client_of", "filled", "live", "metrics", "plain", "worker"]
