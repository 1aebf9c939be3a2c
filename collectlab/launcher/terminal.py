"""What a terminal shows while a script waits for a run: a few lines that are written over, and gone at the end."""

import os
import shutil
import sys
import unicodedata

from collectlab.launcher.glance import Follower


def beside(run):
    """Show in the terminal what the ranks of `run` do, until `close` is called on what is returned.

    None where standard error is no terminal, or one that cannot go back a line.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    return TerminalView(run, stream)


class TerminalView:
    """Draws the run on `stream`, from a thread of its own, until it is closed."""

    def __init__(self, run, stream):
        self._stream, self._height = stream, 0
        self._follower = Follower(run, self._show)

    def _show(self, glance):
        size = shutil.get_terminal_size()
        lines = glance.text(most=max(1, min(16, size.lines - 4))).splitlines()[: max(1, size.lines - 1)]
        self._draw([_fitting(line, size.columns - 1) for line in lines])

    def _draw(self, lines):
        up = f"\x1b[{self._height}A\r" if self._height else ""
        try:
            self._stream.write(f"{up}\x1b[J" + "".join(f"{line}\n" for line in lines))
            self._stream.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone; the run is not
        self._height = len(lines)

    def close(self):
        """Take the lines away. Safe also twice."""
        self._follower.stop()
        if self._height:
            self._draw([])


def _fitting(line, columns):
    """As much of the line as so many columns hold; some letters need two."""
    for end, letter in enumerate(line):
        columns -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if columns < 0:
            return line[:end]
    return line
