"""Colours, hatches and frames by which every view tells ranks and states apart, and never by colour alone.

The colours are those of Okabe and Ito (2008), which people with each common kind of colour blindness tell
apart, with grey in the place of black. Sixteen ranks have sixteen hatches; a rank's number stands beside them.

A picture stands on opaque paper of its own, so it is the same in a light and in a dark JupyterLab, on paper and in a
slide; what is written around it has no colour of its own, and takes that of the page.
"""

from functools import cache

INK = "#1a1a1a"
QUIET = "#595959"  # 7 : 1 on white
LINE = "#8c8c8c"
PAPER = "#ffffff"
WRONG = "#b3261e"
WRONG_PAPER = "#fdeceb"

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
_HATCHES = (
    "", "////", "...", "xxx", "----", "\\\\\\\\", "||||", "++++",
    "oo", "//..", "--..", "\\\\..", "||..", "xx--", "OO", "**",
)  # fmt: skip


def colour(rank):
    """The rank's colour, as #rrggbb."""
    return _COLOURS[rank % len(_COLOURS)]


@cache
def tint(rank, share=0.35):
    """The rank's colour on white, light enough for dark text."""
    full = colour(rank)
    return "#" + "".join(f"{round(255 - share * (255 - int(full[i : i + 2], 16))):02x}" for i in (1, 3, 5))


def hatch(rank):
    """The rank's hatch, in Matplotlib's letters."""
    return _HATCHES[rank % len(_HATCHES)]
