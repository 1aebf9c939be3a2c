"""The queue of a cluster, in which a start of ranks may have to wait: where its job stands, and its end."""

import subprocess

_PATIENCE = 1.5  # seconds that the command which withdraws a job is given


def filled(words, job):
    """The words of a command with the name of the job in the place of {job}."""
    return [word.replace("{job}", job) for word in words]


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


def withdraw(words):
    """Run the command that takes a job out of the queue, or ends it; what went wrong, or ""."""
    if not words:
        return ""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE
        )
        why = done.stderr.strip() if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    return f"{' '.join(words)}: {why}" if why else ""


def end_with_parent():
    """Have the kernel send SIGTERM to this process when its parent dies: salloc then withdraws its job."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
