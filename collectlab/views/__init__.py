"""Pictures that can be stepped, each with a text form. See `view.View` for what all of them can do."""

from collectlab.views.arrivals import arrivals
from collectlab.views.cost_explorer import cost_explorer
from collectlab.views.kernel_player import kernel_player
from collectlab.views.launch_panel import launch_panel
from collectlab.views.live import live
from collectlab.views.ownership import ownership
from collectlab.views.payload_counter import payload_counter
from collectlab.views.rank_map import rank_map
from collectlab.views.traffic import traffic

__all__ = [
    "arrivals", "cost_explorer", "kernel_player", "launch_panel", "live", "ownership", "payload_counter", "rank_map",
    "traffic",
]  # fmt: skip
