"""Publish events to subscribers in the same process."""

import logging
from collections import defaultdict

logger = logging.getLogger(__name__)


class Subscription:
    """The handle returned by ``EventBus.subscribe``."""

    def __init__(self, bus, topic, callback):
        self.bus = bus
        self.topic = topic
        self.callback = callback
        self.active = True

    def cancel(self):
        """Stop receiving events. Cancelling twice is harmless."""
        if not self.active:
            return
        self.active = False
        self.bus._remove(self)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.cancel()


class EventBus:
    """Deliver events to callbacks, by topic."""

    def __init__(self):
        self._subscriptions = defaultdict(list)

    def subscribe(self, topic, callback):
        """Call ``callback`` for each event that is published under ``topic``. The
        topic ``*`` stands for all of them.
        """
        if not callable(callback):
            raise TypeError(f"{callback!r} is not callable")
        subscription = Subscription(self, topic, callback)
        self._subscriptions[topic].append(subscription)
        return subscription

    def publish(self, topic, **payload):
        """Deliver an event and return the number of callbacks that accepted it. A
        callback that raises does not keep the others from being called.
        """
        delivered = 0
        receivers = self._subscriptions[topic] + self._subscriptions["*"]
        for subscription in receivers:
            if not subscription.active:
                continue
            try:
                subscription.callback(topic, **payload)
            except Exception:
                logger.exception("a subscriber of %r failed", topic)
            else:
                delivered += 1
        return delivered

    def _remove(self, subscription):
        """Forget a subscription and its topic if it was the last one."""
        remaining = self._subscriptions[subscription.topic]
        remaining.remove(subscription)
        if not remaining:
            del self._subscriptions[subscription.topic]
