"""What a call's count argument counts, and how many elements and bytes each side of the call then holds.

A count is no number by itself. Four elements are a whole vector to ncclAllReduce, one rank's block of the
result to ncclReduceScatter, and one rank's contribution to ncclAllGather. Here a ``Count`` carries its library,
operation, argument and rank count, and refuses to be mixed with another kind of count, or with a plain number.

Four figures are never mixed: logical payload, bytes moved, memory held, time. This module knows the first only:
the elements that a call is given and the elements that it returns on one rank. How many bytes cross a link
depends on the algorithm (``cost``), memory on what else is alive, and time on the machine.

Sources: NCCL: nccl.h of 2.32.3 and the pages "Collective Communication Functions" and "In-place Operations" of
its user guide. MPI: MPI 4.1, chapter 6, and Open MPI's manual pages. nccl-tests: src/*.cu and doc/PERFORMANCE.md.

One datatype is used on all ranks and on both sides of a call, as NCCL requires. MPI allows more.
"""

import operator
from dataclasses import dataclass
from functools import total_ordering
from numbers import Number

import numpy as np

LIBRARIES = ("NCCL", "MPI", "nccl-tests")

_SAME = "send and receive: the whole vector of each rank"
_SENT = "send: one rank's contribution"
_KEPT = "receive: one rank's block"
_EACH = "receive: what comes from one rank, not the total"
_PEER = "send and receive: one block for each peer"
_EQUAL = "recvbuff == sendbuff"
_ROOT = "sendbuf is MPI_IN_PLACE at the root"


@dataclass(frozen=True)
class Call:
    """How one library spells one operation.

    function  the library's name for it
    counts    its count arguments: name -> the side that it describes
    in_place  when a call works in place, in words
    """

    function: str
    counts: dict
    in_place: str


CALLS = {
    "all_reduce": {
        "NCCL": Call("ncclAllReduce", {"count": _SAME}, _EQUAL),
        "MPI": Call("MPI_Allreduce", {"count": _SAME}, "sendbuf is MPI_IN_PLACE; the input lies in recvbuf"),
        "nccl-tests": Call("all_reduce_perf", {"count": _SAME}, _EQUAL),
    },
    "reduce_scatter": {
        "NCCL": Call("ncclReduceScatter", {"recvcount": _KEPT}, "recvbuff == sendbuff + rank * recvcount"),
        "MPI": Call(
            "MPI_Reduce_scatter_block",
            {"recvcount": _KEPT},
            "sendbuf is MPI_IN_PLACE; the input, nranks * recvcount, starts at the top of recvbuf, and the result "
            "ends up at the top too, where NCCL leaves it at rank * recvcount",
        ),
        "nccl-tests": Call("reduce_scatter_perf", {"count": _KEPT}, "recvbuff == sendbuff + rank * count"),
    },
    "all_gather": {
        "NCCL": Call("ncclAllGather", {"sendcount": _SENT}, "sendbuff == recvbuff + rank * sendcount"),
        "MPI": Call(
            "MPI_Allgather",
            {"sendcount": _SENT, "recvcount": _EACH},
            "sendbuf is MPI_IN_PLACE; the rank's own block already lies at rank * recvcount of recvbuf",
        ),
        "nccl-tests": Call("all_gather_perf", {"count": _SENT}, "sendbuff == recvbuff + rank * count"),
    },
    "broadcast": {
        "NCCL": Call("ncclBroadcast", {"count": "send at the root, receive everywhere: the whole vector"}, _EQUAL),
        "MPI": Call(
            "MPI_Bcast",
            {"count": "the one buffer: the whole vector, sent by the root, received by the others"},
            "always: a rank passes one buffer",
        ),
        "nccl-tests": Call(
            "broadcast_perf", {"count": "send at the root, receive everywhere: the whole vector"}, _EQUAL
        ),
    },
    "reduce": {
        "NCCL": Call("ncclReduce", {"count": "send everywhere, receive at the root: the whole vector"}, _EQUAL),
        "MPI": Call(
            "MPI_Reduce",
            {"count": "send everywhere, receive at the root: the whole vector"},
            f"{_ROOT}; its input lies in recvbuf",
        ),
        "nccl-tests": Call(
            "reduce_perf", {"count": "send everywhere, receive at the root: the whole vector"}, _EQUAL
        ),
    },
    "all_to_all": {
        "NCCL": Call("ncclAlltoAll", {"count": _PEER}, "never: not supported"),
        "MPI": Call(
            "MPI_Alltoall",
            {"sendcount": "send: the block for one peer, not the total", "recvcount": _EACH},
            "sendbuf is MPI_IN_PLACE; what lies in recvbuf is sent, and replaced block by block",
        ),
        "nccl-tests": Call("alltoall_perf", {"count": _PEER}, "never: not supported"),
    },
    "gather": {
        "NCCL": Call("ncclGather", {"count": _SENT}, "at the root, sendbuff == recvbuff + root * count"),
        "MPI": Call(
            "MPI_Gather",
            {"sendcount": _SENT, "recvcount": "receive at the root: what comes from one rank, not the total"},
            f"{_ROOT}; its own block already lies at root * recvcount of recvbuf",
        ),
        "nccl-tests": Call("gather_perf", {"count": _SENT}, "at the root, sendbuff == recvbuff + root * count"),
    },
    "scatter": {
        "NCCL": Call("ncclScatter", {"count": _KEPT}, "at the root, recvbuff == sendbuff + root * count"),
        "MPI": Call(
            "MPI_Scatter",
            {"sendcount": "send at the root: what goes to one rank, not the total", "recvcount": _KEPT},
            "recvbuf is MPI_IN_PLACE at the root; its own block stays at root * sendcount of sendbuf",
        ),
        "nccl-tests": Call("scatter_perf", {"count": _KEPT}, "at the root, recvbuff == sendbuff + root * count"),
    },
}

VARIABLE_CALLS = {  # MPI's forms with one count per rank; NCCL 2.32.3 and nccl-tests have none
    "reduce_scatter_v": Call(
        "MPI_Reduce_scatter",
        {"recvcounts": "receive: block r of the result goes to rank r; the same list on every rank"},
        "sendbuf is MPI_IN_PLACE; the input, sum(recvcounts), and the result start at the top of recvbuf",
    ),
    "all_gather_v": Call(
        "MPI_Allgatherv",
        {"recvcounts": "receive: what comes from rank r; the same list on every rank"},
        "sendbuf is MPI_IN_PLACE; the rank's own block already lies at displs[rank] of recvbuf",
    ),
    "gather_v": Call(
        "MPI_Gatherv",
        {"recvcounts": "receive at the root: what comes from rank r"},
        f"{_ROOT}; its own block already lies at displs[root] of recvbuf",
    ),
    "scatter_v": Call(
        "MPI_Scatterv",
        {"sendcounts": "send at the root: what goes to rank r"},
        "recvbuf is MPI_IN_PLACE at the root; its own block stays at displs[root] of sendbuf",
    ),
    "all_to_all_v": Call(
        "MPI_Alltoallv",
        {"sendcounts": "send: row s lists what rank s sends to each rank"},
        "sendbuf is MPI_IN_PLACE; what lies in recvbuf is sent, and replaced block by block",
    ),
}

OPERATIONS = tuple(CALLS)

_P = "nranks"  # nranks * count elements; 1 is count elements, 0 none
_LENGTHS = {  # operation: (send, receive) at the root, then (send, receive) elsewhere where that differs
    "all_reduce": ((1, 1),),
    "reduce_scatter": ((_P, 1),),
    "all_gather": ((1, _P),),
    "broadcast": ((1, 1), (0, 1)),
    "reduce": ((1, 1), (1, 0)),
    "all_to_all": ((_P, _P),),
    "gather": ((1, _P), (1, 0)),
    "scatter": ((_P, 1), (0, 1)),
}


@dataclass(frozen=True)
class Payload:
    """The elements that one rank gives to a call and gets from it. Not traffic, not memory, not time.

    Zero where the library ignores that buffer on this rank.
    """

    send_elements: int
    recv_elements: int

    def input_bytes(self, dtype):
        """Bytes of the rank's logical input."""
        return self.send_elements * itemsize(dtype)

    def output_bytes(self, dtype):
        """Bytes of the rank's logical output."""
        return self.recv_elements * itemsize(dtype)


@total_ordering
@dataclass(frozen=True, eq=False)
class Count:
    """The value of one count argument, with everything that says what it counts. Made by ``count``.

    library, operation, name, value, nranks    as given; ``name`` is the argument's name in that library

    Counts of one kind (same library, operation, argument and rank count) can be compared and added. Any other
    mixture, and one with a plain number, raises TypeError: take ``value`` if a number is meant.
    """

    library: str
    operation: str
    name: str
    value: int
    nranks: int

    def __post_init__(self):
        call = f"Count({self.library!r}, {self.operation!r}, {self.name!r}, ...)"
        library, spelled = _spelled(call, self.library, self.operation)
        if self.name not in spelled.counts:
            raise TypeError(f"{call}: {spelled.function} has no count argument {self.name!r}; {_names(spelled)}")
        object.__setattr__(self, "library", library)
        object.__setattr__(self, "value", _whole(call, self.name, self.value, 0))
        object.__setattr__(self, "nranks", _whole(call, "nranks", self.nranks, 1))

    @property
    def function(self):
        """The library's name of the operation."""
        return CALLS[self.operation][self.library].function

    @property
    def side(self):
        """Which side of the call the count describes, in words."""
        return CALLS[self.operation][self.library].counts[self.name]

    @property
    def at_root(self):
        """The ``Payload`` of the root; of any rank if the operation has no root."""
        return self._payload(_LENGTHS[self.operation][0])

    @property
    def elsewhere(self):
        """The ``Payload`` of a rank that is not the root; of any rank if the operation has no root."""
        return self._payload(_LENGTHS[self.operation][-1])

    def on(self, rank, root=0):
        """The ``Payload`` of one rank; ``root`` matters only where the operation has one."""
        for name, value in (("rank", rank), ("root", root)):
            _whole(f"on(rank={rank!r}, root={root!r})", name, value, 0, self.nranks - 1)
        return self.at_root if rank == root else self.elsewhere

    @property
    def send_elements(self):
        """Elements that each rank sends; ValueError where the root sends another number than the others."""
        return self._everywhere("send_elements")

    @property
    def recv_elements(self):
        """Elements that each rank receives; ValueError where the root receives another number than the others."""
        return self._everywhere("recv_elements")

    def output_bytes(self, dtype):
        """Logical output bytes of each rank; ValueError where the root's differ from the others'."""
        return self.recv_elements * itemsize(dtype)

    def input_bytes(self, dtype):
        """Logical input bytes of each rank; ValueError where the root's differ from the others'."""
        return self.send_elements * itemsize(dtype)

    def size_column(self, dtype):
        """What nccl-tests prints under "size": the bytes of the larger side. Only for counts of nccl-tests."""
        if self.library != "nccl-tests":
            raise TypeError(f"size_column: {self.library} has no size column; use .to('nccl-tests')")
        return max(self.at_root.input_bytes(dtype), self.at_root.output_bytes(dtype))

    def to(self, library, name=None):
        """The Count by which another library names the same call.

        ``name`` chooses the argument where the library has two (MPI's sendcount and recvcount); the default is
        the one with the same name as here, else the first.
        """
        library, spelled = _spelled(f"to({library!r})", library, self.operation)
        default = self.name if self.name in spelled.counts else next(iter(spelled.counts))
        return Count(library, self.operation, name or default, self.value, self.nranks)

    def _payload(self, lengths):
        times = {0: 0, 1: 1, _P: self.nranks}
        return Payload(*(times[length] * self.value for length in lengths))

    def _everywhere(self, what):
        at_root, elsewhere = getattr(self.at_root, what), getattr(self.elsewhere, what)
        if len({length[what == "recv_elements"] for length in _LENGTHS[self.operation]}) > 1:
            raise ValueError(
                f"{self.function}: {what} is {at_root} at the root and {elsewhere} on every other rank; "
                f"ask for count.at_root.{what} or count.elsewhere.{what}"
            )
        return at_root

    def _kind(self):
        return self.library, self.operation, self.name, self.nranks

    def _alike(self, other, verb):
        if not isinstance(other, Count):
            raise TypeError(
                f"cannot {verb} {self._short()} and {other!r}, which says neither operation nor side; "
                "make it a count (payload.count) or take .value"
            )
        if self._kind() != other._kind():
            raise TypeError(
                f"cannot {verb} {self._short()} ({self.side}) and {other._short()} ({other.side}); "
                "compare send_elements, recv_elements or bytes instead"
            )

    def _short(self):
        return f"{self.function}'s {self.name} = {self.value} on {self.nranks} rank{'s' * (self.nranks != 1)}"

    def __eq__(self, other):
        if not isinstance(other, Count | Number):
            return NotImplemented
        self._alike(other, "compare")
        return self.value == other.value

    def __hash__(self):
        return hash((self._kind(), self.value))

    def __lt__(self, other):
        self._alike(other, "compare")
        return self.value < other.value

    def __add__(self, other):
        self._alike(other, "add")
        return Count(*self._kind()[:3], self.value + other.value, self.nranks)

    __radd__ = __add__

    def __str__(self):
        root, others = self.at_root, self.elsewhere
        who = "each rank" if len(_LENGTHS[self.operation]) == 1 else "the root"
        sides = f"{who} sends {root.send_elements} elements and receives {root.recv_elements}"
        if who == "the root":
            sides += f", every other rank sends {others.send_elements} and receives {others.recv_elements}"
        return f"{self._short()} ({self.side}): {sides}"


def count(library, operation, *bare, nranks, **named):
    """The ``Count`` of a call: ``count("NCCL", "reduce_scatter", recvcount=2, nranks=2)``.

    library    "NCCL" (2.32.3), "MPI" or "nccl-tests", in any case
    operation  one of OPERATIONS
    named      the count, under the name that the library gives it. Where MPI has a sendcount and a recvcount,
               one will do; if both are given they must be equal, and the Count is that of the first.

    A count without a name, or under a name that the call does not have, is a TypeError.
    """
    given = "".join(f", {value!r}" for value in bare) + "".join(f", {k}={v!r}" for k, v in named.items())
    call = f"count({library!r}, {operation!r}{given}, nranks={nranks!r})"
    library, spelled = _spelled(call, library, operation)
    unknown = [name for name in named if name not in spelled.counts]
    if bare or unknown or not named:
        why = (
            f"a bare {bare[0]!r} does not say which side it counts"
            if bare
            else f"{spelled.function} has no argument {unknown[0]}"
            if unknown
            else "the count is missing"
        )
        raise TypeError(f"{call}: {why}; {_names(spelled)}")
    (first, value), *more = named.items()
    for name, other in more:
        if other != value:
            raise ValueError(
                f"{call}: with one datatype both are the same number: "
                f"{first} ({spelled.counts[first]}), {name} ({spelled.counts[name]})"
            )
    _whole(call, first, value, 0)
    _whole(call, "nranks", nranks, 1)
    return Count(library, operation, first, value, nranks)


@dataclass(frozen=True)
class Counts:
    """The list of counts of one of MPI's variable-count calls. Made by ``counts``.

    operation, name    as in VARIABLE_CALLS
    values             one number per rank; for all_to_all_v one such row per sending rank
    """

    operation: str
    name: str
    values: tuple

    @property
    def nranks(self):
        return len(self.values)

    @property
    def function(self):
        """MPI's name of the operation."""
        return VARIABLE_CALLS[self.operation].function

    @property
    def side(self):
        """Which side of the call the counts describe, in words."""
        return VARIABLE_CALLS[self.operation].counts[self.name]

    def on(self, rank, root=0):
        """The ``Payload`` of one rank; ``root`` matters only where the operation has one."""
        for name, value in (("rank", rank), ("root", root)):
            _whole(f"on(rank={rank!r}, root={root!r})", name, value, 0, self.nranks - 1)
        if self.operation == "all_to_all_v":
            return Payload(sum(self.values[rank]), sum(row[rank] for row in self.values))
        total, mine, is_root = sum(self.values), self.values[rank], rank == root
        return {
            "reduce_scatter_v": Payload(total, mine),
            "all_gather_v": Payload(mine, total),
            "gather_v": Payload(mine, total * is_root),
            "scatter_v": Payload(total * is_root, mine),
        }[self.operation]

    def __str__(self):
        return f"{self.function}'s {self.name} = {list(self.values)} ({self.side})"


def counts(library, operation, **named):
    """The ``Counts`` of a variable-count call: ``counts("MPI", "all_gather_v", recvcounts=[3, 0, 2])``.

    operation  a key of VARIABLE_CALLS
    named      the list under its name in MPI: one number per rank, or a ``layout.Partition``; for all_to_all_v
               one row per rank. Only MPI has these calls; another library is a ValueError.
    """
    call = f"counts({library!r}, {operation!r}{''.join(f', {k}={v!r}' for k, v in named.items())})"
    if not isinstance(operation, str) or operation not in VARIABLE_CALLS:
        raise ValueError(f"{call}: operation is one of {', '.join(VARIABLE_CALLS)}, not {operation!r}")
    spelled = VARIABLE_CALLS[operation]
    library = _library(call, library)
    if library != "MPI":
        raise ValueError(f"{call}: {library} has no variable-count forms; MPI's is {spelled.function}")
    if list(named) != list(spelled.counts):
        raise TypeError(f"{call}: {_names(spelled)}")
    ((name, values),) = named.items()
    if operation == "all_to_all_v":
        rows = enumerate(values) if hasattr(values, "__iter__") else [(0, values)]
        values = tuple(_row(call, f"{name}[{rank}]", row) for rank, row in rows)
        if any(len(row) != len(values) for row in values):
            raise ValueError(f"{call}: {name} has one row per rank, and each row one number per rank")
    else:
        values = _row(call, name, values)
    if not values:
        raise ValueError(f"{call}: {name} has one entry per rank, at least one")
    return Counts(operation, name, values)


def _row(call, name, values):
    try:
        return tuple(_whole(call, f"each of {name}", value, 0) for value in getattr(values, "counts", values))
    except TypeError:
        raise TypeError(f"{call}: {name} is a list with one number per rank, not {values!r}") from None


def count_of_input(library, operation, input_elements, nranks):
    """The Count of the call that takes so many elements from a rank, or from the root where only it sends.

    ``count_of_input("NCCL", "reduce_scatter", 4, nranks=2)`` is recvcount = 2. ValueError where the operation
    cuts the input into equal blocks and the rank count does not divide it.
    """
    call = f"count_of_input({library!r}, {operation!r}, {input_elements!r}, nranks={nranks!r})"
    library, spelled = _spelled(call, library, operation)
    value, nranks = _whole(call, "input_elements", input_elements, 0), _whole(call, "nranks", nranks, 1)
    if _LENGTHS[operation][0][0] == _P:
        if value % nranks:
            block = -(-value // nranks)
            raise ValueError(
                f"{call}: {spelled.function} cuts its input into {nranks} equal blocks; "
                f"pad the input to {nranks} x {block} = {nranks * block} elements (layout.Partition.padded)"
            )
        value //= nranks
    return Count(library, operation, next(iter(spelled.counts)), value, nranks)


def nccl_tests_count(operation, nbytes, nranks, dtype):
    """The Count in the row that nccl-tests prints when it is asked for a size of ``nbytes`` (its -b and -e).

    Operations that work in blocks round the block down to a multiple of 16 bytes, so that a small size gives a
    row of 0. ``size_column`` of the result is the size that is printed.
    """
    call = f"nccl_tests_count({operation!r}, nbytes={nbytes!r}, nranks={nranks!r}, dtype={dtype!r})"
    _, spelled = _spelled(call, "nccl-tests", operation)
    nbytes, nranks = _whole(call, "nbytes", nbytes, 0), _whole(call, "nranks", nranks, 1)
    value = nbytes // itemsize(dtype)
    if _P in _LENGTHS[operation][0]:
        whole = max(1, 16 // itemsize(dtype))
        value = value // nranks // whole * whole
    return Count("nccl-tests", operation, next(iter(spelled.counts)), value, nranks)


@dataclass(frozen=True)
class Placement:
    """How the two buffers of one rank lie to each other.

    verdict  "in place", "apart" (they share no element, or the library ignores one of them), or "error" (they
             overlap and the call is not in place: the result is undefined)
    reason   the rule, with the numbers of the call in it
    """

    verdict: str
    reason: str

    @property
    def in_place(self):
        return self.verdict == "in place"

    def __str__(self):
        return f"{self.verdict}: {self.reason}"


def placement(count, send_offset, recv_offset, rank, root=0):
    """The ``Placement`` of a call on one rank.

    count                     a Count of NCCL, nccl-tests or MPI
    send_offset, recv_offset  where the two buffers start, in elements from the start of one allocation
    rank, root                the calling rank, and the root where the operation has one

    NCCL has no in-place constant: the two pointers decide. MPI has MPI_IN_PLACE, and any overlap of two buffers
    that are both passed is an error.
    """
    if not isinstance(count, Count):
        raise TypeError(f"placement(count={count!r}): count is a payload.Count, which says library and operation")
    call = f"placement({count._short()}, send_offset={send_offset!r}, recv_offset={recv_offset!r}, ...)"
    send, recv = _whole(call, "send_offset", send_offset, 0), _whole(call, "recv_offset", recv_offset, 0)
    mine = count.on(rank, root)
    rule = CALLS[count.operation][count.library].in_place
    if (count.library, count.operation) == ("MPI", "broadcast"):
        raise ValueError(f"{call}: MPI_Bcast takes one buffer, so there are no two to compare")
    if count.library != "MPI" and recv - send == _nccl_offset(count, rank, root):
        return Placement("in place", f"send starts at {send}, receive at {recv}; the rule is: {rule}")
    for name, elements in (("send", mine.send_elements), ("receive", mine.recv_elements)):
        if not elements:
            return Placement("apart", f"the {name} side holds no element on rank {rank}")
    spans = f"send is {send}:{send + mine.send_elements}, receive {recv}:{recv + mine.recv_elements}"
    if max(send, recv) < min(send + mine.send_elements, recv + mine.recv_elements):
        return Placement("error", f"{spans}; they overlap, and that is not in place; the rule is: {rule}")
    return Placement("apart", f"{spans}; they share no element")


def _nccl_offset(count, rank, root):
    """recvbuff - sendbuff, in elements, with which NCCL works in place on this rank; None where it never does."""
    own = rank * count.value
    at_root = own if rank == root else None
    return {
        "all_reduce": 0,
        "broadcast": 0,
        "reduce": 0,
        "reduce_scatter": own,
        "all_gather": -own,
        "all_to_all": None,
        "scatter": at_root,
        "gather": None if at_root is None else -at_root,
    }[count.operation]


def itemsize(dtype):
    """Bytes of one element. Takes what ``numpy.dtype`` takes, and "bfloat16", which NumPy lacks."""
    if dtype == "bfloat16":
        return 2
    try:
        size = np.dtype(dtype).itemsize
    except TypeError:
        size = 0
    if dtype is None or size == 0 or np.dtype(dtype).kind not in "biufc":
        raise TypeError(f"dtype={dtype!r}: a NumPy dtype of numbers is accepted, such as 'float32', or 'bfloat16'")
    return size


def _library(call, library):
    names = {name.lower(): name for name in LIBRARIES}
    if not isinstance(library, str) or library.lower() not in names:
        raise ValueError(f"{call}: library is one of {', '.join(LIBRARIES)}, not {library!r}")
    return names[library.lower()]


def _spelled(call, library, operation):
    library = _library(call, library)
    known = isinstance(operation, str)
    if known and operation in CALLS:
        return library, CALLS[operation][library]
    if known and operation in VARIABLE_CALLS:
        function = VARIABLE_CALLS[operation].function
        if library == "MPI":
            raise ValueError(f"{call}: {function} takes one count per rank; use payload.counts")
        raise ValueError(f"{call}: {library} has no variable-count forms; MPI's is {function}")
    raise ValueError(f"{call}: operation is one of {', '.join(OPERATIONS)}, not {operation!r}")


def _names(spelled):
    each = (f"{name} ({side})" for name, side in spelled.counts.items())
    return f"{spelled.function} takes {' or '.join(each)}"


def _whole(call, name, value, least, most=None):
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool | np.bool_)
    if not is_whole or operator.index(value) < least or (most is not None and operator.index(value) > most):
        accepted = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{call}: {name} is a whole number, {accepted}, not {value!r}")
    return operator.index(value)
