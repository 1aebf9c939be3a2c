"""The exercises of notebook 02: counts and bytes, and what each of them describes."""

from collectlab import payload
from collectlab.exercises.exercise import Exercise, Mistake

_TWO_RANKS = (
    payload.count("NCCL", "all_reduce", count=4, nranks=2),
    payload.count("NCCL", "all_gather", sendcount=4, nranks=2),
    payload.count("NCCL", "reduce_scatter", recvcount=2, nranks=2),
    payload.count("NCCL", "all_gather", sendcount=2, nranks=2),
)
_COUNTS = [call.value for call in _TWO_RANKS]
_OUT = [call.recv_elements for call in _TWO_RANKS]
_BYTES = [call.output_bytes("int32") for call in _TWO_RANKS]

four_counts = Exercise(
    question="Which count does NCCL get in AllReduce, AllGather, ReduceScatter, and AllGather of the shards?",
    expected=_COUNTS,
    why="AllReduce counts the whole vector, AllGather what one rank sends, ReduceScatter what one rank keeps.",
    mistakes=(
        Mistake(
            "output lengths",
            _OUT,
            "Those are the output lengths. AllGather's argument is sendcount: what one rank contributes.",
        ),
        Mistake(
            "input of reduce-scatter",
            [4, 4, 4, 2],
            "ReduceScatter's argument is recvcount: the block that one rank keeps, not its input of 4.",
        ),
        Mistake(
            "output of the last call",
            [4, 4, 2, 4],
            "The last AllGather is called on shards: each rank contributes 2 elements, not the 4 it gets.",
        ),
        Mistake(
            "output of all-gather",
            [4, 8, 2, 2],
            "The second is AllGather's output. Its sendcount is one rank's contribution.",
        ),
        Mistake(
            "divided contribution",
            [4, 2, 2, 2],
            "AllGather does not divide: each rank contributes its whole vector of 4.",
        ),
        Mistake(
            "bytes",
            _BYTES,
            "Those are bytes. A count is in elements; the datatype is an argument of its own.",
        ),
        Mistake(
            "all alike",
            [4, 4, 4, 4],
            "Only AllReduce's count is the vector on both sides; ask of each call which side it describes.",
        ),
    ),
)

output_bytes = Exercise(
    question="How many bytes does each of the four calls return on one rank, with 4-byte elements?",
    expected=_BYTES,
    why="an output of 4, 8, 2 and 4 elements, 4 bytes each. It says what a rank gets, not what crossed a link.",
    mistakes=(
        Mistake("elements", _OUT, "Those are elements. Each int32 takes 4 bytes."),
        Mistake(
            "input bytes",
            [call.input_bytes("int32") for call in _TWO_RANKS],
            "Those are the bytes that each rank puts in.",
        ),
        Mistake(
            "counts times four",
            [count * 4 for count in _COUNTS],
            "Those are the counts times 4. A count may describe the other side.",
        ),
        Mistake(
            "eight bytes each",
            [n * 8 for n in _OUT],
            "That is twice too much: an int32 takes 4 bytes, and the question is about one rank.",
        ),
        Mistake(
            "gathered originals",
            [16, 32, 8, 32],
            "The last call gathers shards of 2 elements, not the original vectors.",
        ),
        Mistake(
            "all alike",
            [16, 16, 16, 16],
            "The outputs differ in length: a sum, two vectors, half a sum, and a sum again.",
        ),
    ),
)

_GRADIENT = payload.count("NCCL", "reduce_scatter", recvcount=4, nranks=3)

recvcount = Exercise(
    question="Three ranks reduce-scatter gradients of 12 float32 elements each. What is NCCL's recvcount?",
    expected=_GRADIENT.value,
    why="recvcount names one rank's block of the result, 12 / 3 = 4.",
    mistakes=(
        Mistake(
            "the input",
            _GRADIENT.send_elements,
            "That is the count of reduce-scatter's *input*; recvcount names one rank's block.",
        ),
        Mistake(
            "everyone's input",
            36,
            "That is the input of all three ranks together; recvcount names the block that one of them keeps.",
        ),
        Mistake(
            "number of blocks",
            3,
            "That is the number of ranks, and of blocks. recvcount is the length of one block.",
        ),
        Mistake(
            "block in bytes",
            _GRADIENT.output_bytes("float32"),
            "That is the block in bytes; a count is in elements.",
        ),
        Mistake(
            "input in bytes",
            _GRADIENT.input_bytes("float32"),
            "That is the input in bytes; recvcount is one rank's block, in elements.",
        ),
        Mistake(
            "twice the input",
            24,
            "That is 2 * 12. No side of this call is twice the input: each rank keeps a third of it.",
        ),
    ),
)

_SAME_SIZE = [payload.nccl_tests_count(op, 1024, 4, "float32").value for op in ("all_reduce", "all_gather")]

same_size = Exercise(
    question=(
        "Two rows of nccl-tests, on 4 ranks with float32, both say size 1024. "
        "Which counts stand in the row of all_reduce_perf and in that of all_gather_perf?"
    ),
    expected=_SAME_SIZE,
    why="size is the larger side in bytes: all-reduce's whole vector, but all-gather's output of 4 blocks.",
    mistakes=(
        Mistake(
            "size is the output",
            [256, 256],
            "All-gather's size is its output, 4 blocks; its count is one of them.",
        ),
        Mistake(
            "divided all-reduce",
            [64, 64],
            "All-reduce's count is the whole vector; nothing is divided by the ranks.",
        ),
        Mistake(
            "swapped",
            _SAME_SIZE[::-1],
            "The two are swapped: all-gather is the one that counts one rank's block.",
        ),
        Mistake(
            "bytes", [1024, 1024], "Those are bytes; a float32 takes 4 of them, and a count is in elements."
        ),
        Mistake(
            "bytes of each count", [1024, 256], "Those are the bytes of each count: divide by 4 for float32."
        ),
        Mistake(
            "larger than the output",
            [256, 1024],
            "All-gather's count is one rank's block, smaller than the output and not larger.",
        ),
        Mistake(
            "divided twice",
            [256, 16],
            "Divided once too often: 1024 bytes are 256 elements, and 4 ranks contribute 64 each.",
        ),
    ),
)

_UNSEEN = payload.count("NCCL", "all_to_all", count=3, nranks=4)
_CONVERTED = [_UNSEEN.to("MPI", "sendcount").value, _UNSEEN.to("MPI", "recvcount").value]
_CONVERTED += [_UNSEEN.to("nccl-tests").value, _UNSEEN.to("nccl-tests").size_column("float32")]

all_to_all = Exercise(
    question=(
        "NCCL's AlltoAll has count=3 on 4 ranks, float32. What are MPI_Alltoall's sendcount and recvcount, "
        "and alltoall_perf's count and size?"
    ),
    expected=_CONVERTED,
    why="all three count one block for one peer; size is the bytes of all 4 blocks of a rank, 4 * 3 * 4 B.",
    mistakes=(
        Mistake(
            "totals", [12, 12, 3, 48], "MPI's two counts are per peer as well, not the total over the peers."
        ),
        Mistake(
            "recvcount as total",
            [3, 12, 3, 48],
            "recvcount is what comes from one rank, not the total that is received.",
        ),
        Mistake(
            "sendcount as total",
            [12, 3, 3, 48],
            "sendcount is the block for one peer, not the total that is sent.",
        ),
        Mistake(
            "count as total",
            [3, 3, 12, 48],
            "alltoall_perf's count is one block too; its size is that of all blocks.",
        ),
        Mistake(
            "one block",
            [3, 3, 3, 12],
            "12 is one block in bytes, or four in elements. size is four blocks in bytes.",
        ),
        Mistake(
            "all ranks", [3, 3, 3, 192], "That is the size on all ranks together; the column is one rank's."
        ),
        Mistake(
            "every count as total",
            [12, 12, 12, 48],
            "Every count here is one block for one peer; only size covers all four blocks.",
        ),
    ),
)

_GATHER = payload.count("MPI", "gather", sendcount=5, nranks=4)

gather_lengths = Exercise(
    question="MPI_Gather with sendcount=5 on 4 ranks, root 0: how many elements do rank 0 and rank 2 receive?",
    expected=[_GATHER.on(0).recv_elements, _GATHER.on(2).recv_elements],
    why="the root gets one contribution from each of the 4 ranks, its own included; nobody else gets anything.",
    mistakes=(
        Mistake("all-gather", [20, 20], "That would be AllGather. In Gather only the root receives."),
        Mistake(
            "one contribution",
            [5, 0],
            "5 is what comes from one rank; the root gets that from each of the 4.",
        ),
        Mistake("root left out", [15, 0], "The root's own contribution is placed in its receive buffer too."),
        Mistake("rank 2 receives its own", [20, 5], "Rank 2 sends 5 elements. It receives none."),
        Mistake("what is sent", [5, 5], "5 is what each rank sends; the question is what they receive."),
        Mistake("other root", [0, 20], "The root of this call is rank 0: it is the one that receives."),
    ),
)
