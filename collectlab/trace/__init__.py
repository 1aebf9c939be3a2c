"""The events a run leaves, and what follows from them: bytes, order, races."""

from collectlab.trace.events import Clock, Event
from collectlab.trace.trace import Trace

__all__ = ["Clock", "Event", "Trace"]
