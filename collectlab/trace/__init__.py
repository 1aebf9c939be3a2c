"""The events a run leaves, and what follows from them: bytes, order, races."""

from collectlab.trace.events import Event, Trace

__all__ = ["Event", "Trace"]
