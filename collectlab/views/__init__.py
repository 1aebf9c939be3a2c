"""Pictures that can be stepped, each with a text form. See `view.View` for what all of them can do."""

from collectlab.views.arrivals import arrivals
from collectlab.views.ownership import ownership
from collectlab.views.payload_counter import payload_counter
from collectlab.views.rank_map import rank_map

__all__ = ["arrivals", "ownership", "payload_counter", "rank_map"]
