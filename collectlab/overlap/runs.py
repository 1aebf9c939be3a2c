"""Carry a plan out, on real ranks or simulated ones, and look for hazards in what the ranks did."""

from dataclasses import dataclass, replace

from collectlab.overlap import hazards, on_ranks
from collectlab.overlap.plan import Done, Event, Operation, Wait, with_values


@dataclass(frozen=True, repr=False)
class Overlapped:
    """What a plan left.

    results   what it returned on each rank, its buffers as arrays; None where a rank did not return
    done      what each rank gave its streams to do; empty when a rank did not return
    in_order  whether operations of one stream come in order (CUDA), or each by itself (MPI)
    run       the Run, or the SimulatedRun of its lanes
    """

    results: list
    done: list
    in_order: bool
    run: object

    @property
    def ok(self):
        """Whether every rank returned."""
        return self.run.ok

    def hazards(self):
        """The Hazards: empty when there is none, and then no order of the streams changes the results."""
        if not self.ok:
            raise RuntimeError(f"hazards(): the plan did not come to its end:\n{self.run.report()}")
        return hazards.find(self.done, self.in_order)

    def __repr__(self):
        return f"Overlapped({len(self.results)} ranks: {self.run.status})"


def run(plan, *args, ranks=4, device="auto", site=None, timeout=60):
    """Carry out `plan(ctx, *args)` on real ranks; returns Overlapped.

    `ranks` is a number, or warm ranks of cl.launch. On the CPU collectives are MPI's requests; on a GPU the plan
    works on CUDA streams with NCCL.
    """
    if hasattr(ranks, "submit"):
        found = ranks.submit(carried_out, plan, *args).wait(timeout)
    else:
        from collectlab.launcher.ranks import run as on_fresh_ranks

        found = on_fresh_ranks(
            carried_out, plan, *args, ranks=ranks, device=device, site=site, timeout=timeout, trace=False
        )
    if not found.ok:
        return Overlapped([None] * found.nranks, [], False, found)
    in_order = any(in_order for _, _, in_order in found.results)
    values, done = ([result[k] for result in found.results] for k in (0, 1))
    return Overlapped(values, done, in_order, found)


def carried_out(ctx, plan, *args):
    """The program of a real rank: what the plan returned, what was Done, and whether streams are in order."""
    streams = on_ranks.streams(ctx)
    returned = plan(streams, *args)
    values, done = streams.finish(returned)
    return with_values(returned, iter(values)), _without_calls(done), isinstance(streams, on_ranks.OnCuda)


def _without_calls(done):
    """The same without the functions, which hold what they compute with and need not travel."""
    light, events = {}, {}

    def event(e):
        if e.number not in events:
            events[e.number] = Event(e.number, e.operation and operation(e.operation), None, e.line)
        return events[e.number]

    def operation(o):
        if o not in light:
            light[o] = replace(o, call=None, after=tuple(map(event, o.after)))
        return light[o]

    steps = [
        operation(step) if isinstance(step, Operation)
        else Wait(event(step.event), step.line) if isinstance(step, Wait)
        else event(step)
        for step in done.steps
    ]  # fmt: skip
    return Done(steps)


def simulate(plan, *args, ranks=4, schedule=None, in_order=False):
    """Carry out `plan(ctx, *args)` on simulated ranks; returns Overlapped.

    in_order  False: each collective is a request that goes on by itself, as in MPI. True: those of one stream come in
              order, and wait for `after` only, as in CUDA
    schedule  the number of one of the possible orders of steps of all lanes, as for cl.simulate
    """
    from collectlab.overlap import simulated  # here, as an environment of ranks need not have greenlet

    returned, done = simulated.recorded(plan, args, ranks)
    found = simulated.carried_out(done, in_order, schedule)
    wide = found.nranks // ranks
    results = [
        None if found.results[rank * wide] is None else with_values(value, iter(found.results[rank * wide]))
        for rank, value in enumerate(returned)
    ]
    return Overlapped(results, done, in_order, found)
