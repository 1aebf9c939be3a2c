"""The queue of a cluster, in which a start of ranks may have to wait: where its job stands, and its end."""

import os
import re
import subprocess

from collectlab.launcher import sweep

_PATIENCE = 1.5  # seconds that the command which withdraws a job is waited for
_FIRST, _LONGEST = 0.3, 10.0  # seconds before the first look at a queue, and at most before another


def filled(words, job):
    """The words of a command with the name of the job in the place of {job}."""
    return [word.replace("{job}", job) for word in words]


class Job:
    """The job of one start, as it is seen in the queue. `ask` are the words of a site's `queue`."""

    def __init__(self, job, ask, hopeless):
        self._name, self._ask, self._hopeless = job, ask, hopeless
        self._pause, self._asked, self._said = _FIRST, None, None

    def pause(self):
        """Seconds until the next look at the queue: many users look at it."""
        pause, self._pause = self._pause, min(1.5 * self._pause, _LONGEST)
        return pause

    def ask(self):
        """Look at the queue; returns a pidfd that can be read when `answer` knows."""
        self._said = os.memfd_create("collectlab-queue", os.MFD_CLOEXEC)
        words = {"stdin": subprocess.DEVNULL, "stdout": self._said, "stderr": subprocess.DEVNULL}
        self._asked = subprocess.Popen(self._ask, **words)
        return os.pidfd_open(self._asked.pid)

    def answer(self):
        """(how the job stands in the queue, why it never will leave it), in words; None for what is not so."""
        self._asked.wait()
        with open(self._said, "rb") as said:
            said.seek(0)
            found = standing(said.read().decode(errors="replace"), self._name)
        if found is None:
            return None, None
        hopeless = next((what for reason, what in self._hopeless.items() if reason in found[2]), None)
        return in_words(*found), hopeless and f"{found[2]}: {hopeless}"


def standing(text, job):
    """(place, length, reason) of a job in a queue; None where it does not wait.

    `text` has a line for each job that waits, the next to run first: its name, a space, why it waits.
    """
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    for place, (name, *reason) in enumerate(lines, 1):
        if name == job:
            return place, len(lines), reason[0].strip() if reason else ""
    return None


def in_words(place, length, reason):
    """A standing as a person reads it."""
    ahead = f"number {place} of {length} that wait" if length > 1 else "no other job waits"
    return f"in the queue, {ahead}" + (f"; reason: {reason}" if reason and reason != "None" else "")


def explained(output, hints):
    """What a launcher says that starts nothing, and what to do about it; None where no hint is known."""
    for line in output.splitlines():
        for words, hint in hints.items():
            if words in line:
                return f"{re.sub(r'^[a-z]+: (error: )?', '', line.strip()).rstrip('.')}; {hint}"
    return None


def withdraw(words):
    """Run the command that ends a job; what went wrong, or "".

    On a busy cluster it may take long: then it goes on by itself, also when all that carries the tag is killed.
    """
    if not words:
        return ""
    untagged = {name: value for name, value in os.environ.items() if name != sweep.TAG}
    with open(os.memfd_create("collectlab-cancel", os.MFD_CLOEXEC), "w+b") as said:
        try:
            asked = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, env=untagged,
                start_new_session=True,
            )  # fmt: skip
            why = asked.wait(_PATIENCE) and os.pread(said.fileno(), 1 << 12, 0).decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            why = f"it has not answered after {_PATIENCE} s, and goes on"
        except OSError as error:
            why = str(error)
    return f"{' '.join(words)}: {why}" if why else ""
