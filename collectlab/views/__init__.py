"""Pictures that can be stepped, each with a text form. See `view.View` for what all of them can do."""

from collectlab.views.arrivals import arrivals
from collectlab.views.cost_explorer import cost_explorer
from collectlab.views.kernel_player import kernel_player
from collectlab.views.lanes import lanes
from collectlab.views.launch_panel import launch_panel
from collectlab.views.live import live
from collectlab.views.memory_timeline import memory_timeline
from collectlab.views.modular_lab import modular_lab
from collectlab.views.ownership import ownership
from collectlab.views.payload_counter import payload_counter
from collectlab.views.rank_map import rank_map
from collectlab.views.side_by_side import side_by_side
from collectlab.views.streams import streams
from collectlab.views.traffic import traffic

__all__ = [
    "arrivals", "cost_explorer", "kernel_player", "lanes", "launch_panel", "live", "memory_timeline", "modular_lab",
    "ownership", "payload_counter", "rank_map", "side_by_side", "streams", "traffic",
]  # fmt: skip
