"""Training on ranks that share the work, and also what they hold.

    collectives.py         reduce-scatter and all-gather of MPI on a vector that a Partition cuts
    buckets.py             Buckets: which slices of the parameters a rank owns
    model.py               Network: two layers, their gradient, and the samples that they learn
    optimizers.py          Sgd and Adam, elementwise, so that they work on any slice
    training.py            Task, train, reference
    strategies.py          three ways to train: replicated, sharded optimizer, sharded parameters
    memory.py              the plan: what is held at each stage of a step
    meter.py               what was held, measured
    checkpoint.py          shards on disk with a manifest; reading any slices back
    manifest.py            what every shard is to be, and the refusal of what is not
"""

from collectlab.sharding import checkpoint, collectives
from collectlab.sharding.buckets import Buckets
from collectlab.sharding.memory import Phase, Plan, mixed_precision, mixed_precision_table, plan
from collectlab.sharding.meter import measure
from collectlab.sharding.model import Network
from collectlab.sharding.optimizers import Adam, Sgd
from collectlab.sharding.strategies import STRATEGIES, train
from collectlab.sharding.training import Task, reference

__all__ = [
    "STRATEGIES", "Adam", "Buckets", "Network", "Phase", "Plan", "Sgd", "Task", "checkpoint", "collectives",
    "measure", "mixed_precision", "mixed_precision_table", "plan", "reference", "train",
]  # fmt: skip
