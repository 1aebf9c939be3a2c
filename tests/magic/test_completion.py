"""Completion in `%%ranks` cells: names of the ranks, options of the magic, in bounded time, at no rank's cost."""

import os
import signal
import time

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from collectlab import completion, magic


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "collectlab")
    shell.run_line_magic("load_ext", "collectlab")
    shell.run_cell(
        "%%ranks -n 2\nmarker_one = [1]\nmarker_two = 'text'\n"
        "class Trap:\n"
        "    inner = 5\n"
        "    @property\n"
        "    def hangs(self):\n"
        "        comm.recv(source=rank)\n"
        "trap = Trap()\n"
        "trap.own = marker_two"
    )
    yield shell
    shell.run_line_magic("ranks", "stop")
    InteractiveShell.clear_instance()


@pytest.fixture
def magics(shell):
    return shell.find_cell_magic("ranks").__self__


@pytest.fixture
def patient(monkeypatch):
    """Ranks that share their cores with other tests may take longer than a person would wait."""
    monkeypatch.setattr(magic, "_OFFER", 20)


@pytest.fixture
def complete(shell):
    """What is offered where the bar stands in a cell: a set of str; what IPython makes of it."""

    def ask(text):
        at = text.index("|")
        with provisionalcompleter():
            found = list(shell.Completer.completions(text.replace("|", "", 1), at))
        return {item.text for item in found}

    return ask


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%%ranks\nmark|", {"marker_one", "marker_two"}),
        ("%%ranks -n 2 --timeout 5\nx = 1\ny = marker_o|\nz = 2", {"marker_one"}),
        ("\n%%ranks\nnra|", {"nranks"}),
        ("%%ranks\nprint(trap.ow|)", {"own"}),
        ("%%ranks\ntrap.inn|", {"inner"}),
        ("%%ranks\ntrap.own.isalp|", {"isalpha"}),
        ("%%ranks\ncomm.allred|", {"allreduce"}),
        ("%%ranks\n[marker_one.app|]", {"append"}),
    ],
)
def test_names_are_those_of_the_ranks(text, found, complete, patient):
    offered = complete(text)
    assert found <= offered and len(offered) <= len(found) + 2, offered


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%%ranks --ti|", {"--timeout"}),
        ("%%ranks -|", {"-n", "--ranks", "--timeout", "--device", "--site"}),
        ("%%ranks -n 2 --site lo|", {"local"}),
        ("%%ranks --device |\nx", {"auto", "cpu", "cuda"}),
        ("%ranks st|", {"stop"}),
    ],
)
def test_options_are_those_of_the_magic(text, found, complete):
    assert complete(text) == found


def test_each_says_what_kind_of_thing_it_is(shell, patient):
    with provisionalcompleter():
        kinds = {
            text: {item.type for item in shell.Completer.completions(text, len(text))}
            for text in ("%%ranks\nmark", "%%ranks --ti")
        }
    assert kinds == {"%%ranks\nmark": {"instance"}, "%%ranks --ti": {"option"}}


@pytest.mark.parametrize(
    "text",
    ["marker_|", "%%ranks\nf(x).marker_|", "%%ranks\n'text'.marker_|", "%%ranks\nnowhere.marker_|",
     "%%ranks\nmarker_one.nowhere.x|", "x = 1\n%%ranks\nmarker_|", "%%ranksy\nmarker_|"],
)  # fmt: skip
def test_elsewhere_the_ranks_have_nothing_to_say(text, complete, patient):
    assert not {"marker_one", "marker_two"} & complete(text)


def test_modules_are_completed_as_ever(complete, patient):
    assert "collectlab" in complete("%%ranks\nimport collectl|")


def test_the_notebooks_own_names_are_not_those_of_the_ranks(shell, complete, patient):
    shell.user_ns["marker_here"] = 1
    assert "marker_here" in complete("marker_h|") and "marker_here" not in complete("%%ranks\nmarker_|")


def test_a_property_is_not_called_and_the_ranks_live_on(complete, magics, patient):
    run = magics.ranks.submit(magic.cells.Completions("trap.hangs", "x")).wait(20)
    assert run.results == [[], None]
    assert complete("%%ranks\ntrap.hangs.x|") == set()
    assert "marker_one" in complete("%%ranks\nmarker_o|")


def test_ranks_that_do_not_answer_hold_nobody_up_and_lose_nothing(complete, magics, shell, capsys):
    found = [int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if _is_rank(pid, magics.ranks._link.tag)]
    assert len(found) == 4  # two ranks, and the guard of each
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert magics.offered("", "marker_") == [] and magics.ranks.status == "running"
        assert time.monotonic() - start < 5, "a bound, where without one it would be for ever"
        assert magics.offered("", "marker_") == [], "busy ranks are not asked again"
    finally:
        for pid in found:
            os.kill(pid, signal.SIGCONT)
    shell.run_cell("%%ranks\nmarker_two")
    assert "all 2 ranks: 'text'" in capsys.readouterr().out


def _is_rank(pid, tag):
    try:
        with open(f"/proc/{pid}/environ", "rb") as env, open(f"/proc/{pid}/cmdline") as command:
            words = command.read()
            return tag.encode() in env.read() and "launcher.worker" in words and "mpiexec" not in words
    except OSError:
        return False


def test_no_run_is_left_by_a_completion(complete, patient):
    from collectlab.launcher import rundir

    before = set(rundir.names())
    assert complete("%%ranks\nmarker_o|")
    assert set(rundir.names()) <= before


def test_loaded_twice_it_asks_once(shell):
    ours = [m for m in shell.Completer.custom_matchers if getattr(m, "collectlab", False)]
    assert len(ours) == 1


def test_where_no_ranks_were_started_none_are(shell):
    fresh = magic.RanksMagics(shell)
    assert completion.offered(fresh, "%%ranks\nx", 1, 1) == ([], "x") and fresh.ranks is None
