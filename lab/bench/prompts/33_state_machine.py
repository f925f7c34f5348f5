"""Finite state machines with callbacks."""

from collections import defaultdict


class TransitionError(Exception):
    """An event is not allowed in the current state."""

    def __init__(self, state, event):
        super().__init__(f"event {event!r} is not allowed in state {state!r}")
        self.state = state
        self.event = event


class StateMachine:
    """An object that is in exactly one state at a time."""

    def __init__(self, initial):
        self.state = initial
        self.history = [initial]
        self._transitions = {}
        self._callbacks = defaultdict(list)

    def add_transition(self, event, source, target, condition=None):
        """Allow ``event`` to lead from ``source`` to ``target``. If a condition is
        given, the transition only happens when it returns a true value.
        """
        key = (source, event)
        if key in self._transitions:
            raise ValueError(f"duplicate transition for {event!r} from {source!r}")
        self._transitions[key] = (target, condition)

    def on_enter(self, state):
        """Decorate a function that is called each time ``state`` is entered."""

        def register(function):
            self._callbacks[state].append(function)
            return function

        return register

    def can(self, event):
        """Say whether ``event`` would succeed in the current state."""
        if (self.state, event) not in self._transitions:
            return False
        _, condition = self._transitions[self.state, event]
        return condition is None or bool(condition())

    def fire(self, event):
        """Perform the transition for ``event`` and return the new state."""
        if not self.can(event):
            raise TransitionError(self.state, event)
        target, _ = self._transitions[self.state, event]
        previous = self.state
        self.state = target
        self.history.append(target)
        for callback in self._callbacks[target]:
            callback(previous, target)
        return target

    def allowed_events(self):
        """Return the events that have a transition from the current state."""
        events = []
        for source, event in self._transitions:
            if source == self.state:
                events.append(event)
        return sorted(events)
