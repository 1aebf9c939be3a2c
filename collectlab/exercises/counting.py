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
    why="AllReduce counts the whole array, AllGather what one rank sends, ReduceScatter what one rank keeps.",
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
            "AllGather does not divide: each rank contributes its whole array of 4.",
        ),
        Mistake("bytes", _BYTES, "Those are bytes. A count is in elements; the datatype is an argument of its own."),
        Mistake(
            "of both ranks",
            [count * 2 for count in _COUNTS],
            "Those are twice the counts. A count is what one rank passes to its call, not what both pass together.",
        ),
        Mistake(
            "all alike",
            [4, 4, 4, 4],
            "Only AllReduce's count is the array on both sides; ask of each call which side it describes.",
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
            "The last call gathers shards of 2 elements, not the original arrays.",
        ),
        Mistake(
            "the whole sum",
            [16, 32, 16, 16],
            "The third is the whole sum. Reduce-scatter returns one block of it to each rank.",
        ),
        Mistake(
            "all alike",
            [16, 16, 16, 16],
            "The outputs differ in length: a sum, two arrays, half a sum, and a sum again.",
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
            "number of blocks", 3, "That is the number of ranks, and of blocks. recvcount is the length of one block."
        ),
        Mistake(
            "block in bytes", _GRADIENT.output_bytes("float32"), "That is the block in bytes; a count is in elements."
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
        "Two rows of nccl-tests, on 4 ranks with float32, both say size 1024. Which counts stand in the row of "
        "all_reduce_perf and in that of all_gather_perf?"
    ),
    expected=_SAME_SIZE,
    why="size is the larger side in bytes: all-reduce's whole array, but all-gather's output of 4 blocks.",
    mistakes=(
        Mistake(
            "size is the output", [256, 256], "All-gather's size is its output, 4 blocks; its count is one of them."
        ),
        Mistake(
            "divided all-reduce", [64, 64], "All-reduce's count is the whole array; nothing is divided by the ranks."
        ),
        Mistake(
            "swapped", _SAME_SIZE[::-1], "The two are swapped: all-gather is the one that counts one rank's block."
        ),
        Mistake("bytes", [1024, 1024], "Those are bytes; a float32 takes 4 of them, and a count is in elements."),
        Mistake(
            "bytes of each count",
            [1024, 256],
            "Those are the bytes that the two counts stand for. A count is in elements, of 4 bytes each.",
        ),
        Mistake(
            "larger than the output",
            [256, 1024],
            "All-gather's count is one rank's block, smaller than the output and not larger.",
        ),
        Mistake(
            "divided twice",
            [256, 16],
            "Divided once too often: once by the bytes of an element and once by the ranks is enough.",
        ),
    ),
)

_UNSEEN = payload.count("NCCL", "all_to_all", count=8, nranks=4)
_CONVERTED = [_UNSEEN.to("MPI", "sendcount").value, _UNSEEN.to("MPI", "recvcount").value]
_CONVERTED += [_UNSEEN.to("nccl-tests").value, _UNSEEN.to("nccl-tests").size_column("float32")]

all_to_all = Exercise(
    question=(
        "On 4 ranks every rank passes four blocks of 8 float32, and NCCL's AlltoAll gets count=8. What are "
        "MPI_Alltoall's sendcount and recvcount, and alltoall_perf's count and size?"
    ),
    expected=_CONVERTED,
    why="every count is one block for one rank; size is the bytes of all 4 blocks of a rank, 4 * 8 * 4 B.",
    mistakes=(
        Mistake(
            "totals",
            [32, 32, 8, 128],
            "Those are MPI's totals. Each of its two counts describes one block, as recvcount does in all-gather.",
        ),
        Mistake(
            "recvcount as total",
            [8, 32, 8, 128],
            "recvcount is what comes from one rank, not the total that is received.",
        ),
        Mistake(
            "sendcount as total", [32, 8, 8, 128], "sendcount is the block for one rank, not the total that is sent."
        ),
        Mistake("count as total", [8, 8, 32, 128], "nccl-tests' count follows NCCL's; its size is the total."),
        Mistake(
            "one block in bytes",
            [8, 8, 8, 32],
            "32 is one block in bytes, or four blocks in elements. size is a rank's whole side, in bytes.",
        ),
        Mistake(
            "size of one block in elements",
            [8, 8, 8, 8],
            "The first three are right. size is in bytes, and covers more than one block.",
        ),
        Mistake(
            "size on all ranks", [8, 8, 8, 512], "That is the size on all ranks together; the column is one rank's."
        ),
        Mistake(
            "own block left out",
            [8, 8, 8, 96],
            "That is the size of three blocks. A rank has a block for itself, too.",
        ),
        Mistake(
            "every count as total",
            [32, 32, 32, 128],
            "Only size covers all blocks of a rank. What does the count describe that NCCL gets here?",
        ),
        Mistake(
            "divided by the ranks",
            [2, 2, 2, 32],
            "Nothing is left to divide by the ranks: the count that NCCL gets is one block already.",
        ),
    ),
)

_ROW = payload.nccl_tests_count("scatter", 512, 4, "float32")
_SCATTERED = [_ROW.to("NCCL").value, _ROW.to("MPI", "sendcount").value, _ROW.to("MPI", "recvcount").value]
_SCATTERED += [_ROW.on(2).recv_elements]

scatter_row = Exercise(
    question=(
        "A row of scatter_perf says size 512, on 4 ranks with float32. What are NCCL's count, MPI_Scatter's "
        "sendcount and recvcount, and how many elements does rank 2 receive?"
    ),
    expected=_SCATTERED,
    why="512 bytes are the root's 128 elements, four blocks of 32, and every count describes one block.",
    mistakes=(
        Mistake(
            "all blocks, or bytes of one",
            [128, 128, 128, 128],
            "128 is the root's whole input in elements, or one rank's block in bytes; it is no count here.",
        ),
        Mistake(
            "every count as total",
            [128, 128, 128, 32],
            "128 elements are all that the root holds. Which part of them does a count describe?",
        ),
        Mistake(
            "what the root passes",
            [128, 128, 32, 32],
            "128 elements are all that the root hands out. Neither NCCL nor MPI is told that number.",
        ),
        Mistake(
            "sendcount as total",
            [32, 128, 32, 32],
            "MPI's sendcount is what goes to one rank, not all that the root sends.",
        ),
        Mistake(
            "count as total",
            [128, 32, 32, 32],
            "NCCL's count is not the root's whole input: it describes the same block as MPI's counts.",
        ),
        Mistake(
            "divided twice",
            [8, 8, 8, 8],
            "Divided once too often: once by the bytes of an element and once by the ranks is enough.",
        ),
        Mistake("bytes", [512, 512, 512, 512], "That is the column size, in bytes, and of the root's whole input."),
        Mistake(
            "only the root receives",
            [32, 32, 32, 0],
            "In scatter the root sends, and every rank receives a block, rank 2 too.",
        ),
        Mistake(
            "rank 2 receives all",
            [32, 32, 32, 128],
            "Every rank receives its own block; to hand everything to everyone is a broadcast.",
        ),
    ),
)
