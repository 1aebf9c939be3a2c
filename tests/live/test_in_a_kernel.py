"""What a notebook shows by itself: a run that goes on, a run that a cell waits for, a `%%ranks` cell."""

import time
from queue import Empty

import pytest
from jupyter_client.manager import start_new_kernel

WIDGET = "application/vnd.jupyter.widget-view+json"

SETUP = """
import sys, time
import collectlab as cl
%load_ext collectlab

def held(ctx, gate):
    print("at the gate", flush=True)
    ctx.progress(1, 4)
    open(f"{gate}.{ctx.rank}").read()
    return ctx.rank
"""


class Kernel:
    """A kernel of JupyterLab, and the page that would show what it sends."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(extra_arguments=["--log-level=ERROR"])
        self.models, self.closed = {}, set()  # comm id -> state, as a page holds it
        self.outputs, self.over = {}, set()  # of each cell; the cells that are over

    def listen(self, seconds=0.05):
        """Take what comes in so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                message = self.client.get_iopub_msg(timeout=max(0, end - time.monotonic()))
            except Empty:
                return
            kind, content, cell = message["msg_type"], message["content"], message["parent_header"].get("msg_id")
            if kind == "comm_open":
                self.models[content["comm_id"]] = dict(content["data"]["state"])
            elif kind == "comm_msg" and content["data"].get("method") == "update":
                self.models.setdefault(content["comm_id"], {}).update(content["data"]["state"])
            elif kind == "comm_close":
                self.closed.add(content["comm_id"])
            elif kind in ("stream", "display_data", "execute_result", "error"):
                self.outputs.setdefault(cell, []).append(content)
            elif kind == "update_display_data":
                for output in (output for outputs in self.outputs.values() for output in outputs):
                    if output.get("transient", {}).get("display_id") == content["transient"]["display_id"]:
                        output["data"] = content["data"]
            elif kind == "status" and content["execution_state"] == "idle":
                self.over.add(cell)

    def until(self, happened, within=20):
        end = time.monotonic() + within
        while not happened():
            assert time.monotonic() < end, (self.markup(), self.outputs)
            self.listen()

    def execute(self, cell, name=None):
        """Send a cell, under the name that it has in a notebook of JupyterLab; its id."""
        content = {"code": cell, "silent": False, "store_history": True, "stop_on_error": True}
        message = self.client.session.msg("execute_request", content, metadata={"cellId": name} if name else None)
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def run(self, cell, name=None):
        """Send a cell and wait for its end; what it gave."""
        asked = self.execute(cell, name)
        self.until(lambda: asked in self.over, 60)
        return self.outputs.get(asked, [])

    def markup(self):
        """What all HTML widgets that are open show."""
        states = [state for comm, state in self.models.items() if comm not in self.closed]
        return "\n".join(s.get("value", "") for s in states if s.get("_model_name") == "HTMLModel")

    def pictures(self):
        """What the pictures that are open show, in a few words."""
        states = [state for comm, state in self.models.items() if comm not in self.closed]
        return sorted(s["tooltip"].partition(":")[0] for s in states if s.get("_model_name") == "ImageModel")

    def button(self, name):
        for comm, state in self.models.items():
            if comm not in self.closed and state.get("description") == name:
                return comm
        raise AssertionError(f"no button {name}")

    def subshell(self):
        """A new subshell of the kernel: JupyterLab sends what widgets say through one."""
        message = self.client.session.msg("create_subshell_request")
        self.client.control_channel.send(message)
        return self.client.get_control_msg(timeout=20)["content"]["subshell_id"]

    def click(self, comm, subshell=None):
        content = {"comm_id": comm, "data": {"method": "custom", "content": {"event": "click"}}}
        message = self.client.session.msg("comm_msg", content)
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)


@pytest.fixture(scope="module")
def _kernel(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("COLLECTLAB_RUNS", str(tmp_path_factory.mktemp("runs")))
    found = Kernel()
    patch.undo()
    assert found.run(SETUP) == []
    yield found
    found.client.stop_channels()
    found.manager.shutdown_kernel(now=True)
    found.manager.cleanup_resources()


@pytest.fixture
def kernel(_kernel):
    _kernel.models, _kernel.closed, _kernel.outputs = {}, set(), {}
    return _kernel


def texts(outputs):
    return "".join(output.get("text") or "" for output in outputs)


def test_a_run_that_goes_on_is_shown_and_followed_also_while_the_kernel_is_busy(kernel, gate):
    kernel.run("ranks = cl.launch(2, device='cpu')")
    (shown,) = kernel.run(f"run = ranks.submit(held, {gate.path!r})\nrun")
    assert shown["data"]["text/plain"] == "Run(held on 2 ranks: running)" and WIDGET in shown["data"]
    kernel.until(lambda: kernel.markup().count("at the gate") == 2)
    busy = kernel.execute("import threading\nfree = threading.Event()\nfree.wait(20)")
    gate.open(2)
    kernel.until(lambda: "done after" in kernel.markup())
    assert busy not in kernel.over, "the kernel is busy as long as this cell runs"
    kernel.manager.interrupt_kernel()
    kernel.until(lambda: busy in kernel.over)
    (again,) = kernel.run("run")
    assert list(again["data"]) == ["text/plain"] and again["data"]["text/plain"] == "Run(held on 2 ranks: done)"
    left = "[t.name for t in threading.enumerate() if t.name.startswith('collectlab')]"
    assert texts(kernel.run(f"print(run.results, {left})")) == "[0, 1] []\n"
    kernel.run("ranks.stop()")


def test_a_run_that_is_waited_for_is_shown_meanwhile_and_leaves_only_its_results(kernel, gate):
    cell = kernel.execute(f"cl.run(held, {gate.path!r}, ranks=2, device='cpu').results")
    kernel.until(lambda: kernel.markup().count("at the gate") == 2)
    (shown,) = kernel.outputs[cell]
    assert list(shown["data"]) == [WIDGET], "no text, which another execution might not have"
    gate.open(2)
    kernel.until(lambda: cell in kernel.over)
    assert kernel.markup() == "" and set(kernel.models) == kernel.closed
    took_its_place, result = kernel.outputs[cell]
    assert took_its_place["data"] == {}, "a saved notebook would ask for the widget"
    assert result["data"]["text/plain"] == "[0, 1]"


def test_stop_works_while_the_cell_waits(kernel, gate):
    subshell = kernel.subshell()
    cell = kernel.execute(f"run = cl.run(held, {gate.path!r}, ranks=2, device='cpu')\nprint(run.status)")
    kernel.until(lambda: kernel.markup().count("at the gate") == 2)
    stop = kernel.button("Stop")
    kernel.click(stop, subshell)
    kernel.click(stop, subshell)
    kernel.until(lambda: cell in kernel.over)
    said = texts(kernel.outputs[cell])
    assert "interrupted: held on 2 ranks was interrupted after" in said and "interrupted\n" in said
    assert kernel.run("cl.run(lambda ctx: ctx.rank, ranks=2).results")[-1]["data"]["text/plain"] == "[0, 1]"


def test_a_cell_on_ranks_shows_what_they_print_under_their_names_and_once_at_the_end(kernel, gate):
    code = f"print('all the same')\nctx.progress(2, 3)\nopen(f'{gate.path}.{{rank}}').read()\nrank * 10"
    cell = kernel.execute(f"%%ranks -n 2\n{code}")
    kernel.until(lambda: kernel.markup().count("all the same") == 2)
    assert ">rank 0</th>" in kernel.markup() and "2 of 3" in kernel.markup()
    gate.open(2)
    kernel.until(lambda: cell in kernel.over)
    assert texts(kernel.outputs[cell]) == "rank 0:\nall the same\n0\nrank 1:\nall the same\n10\n"
    assert kernel.markup() == ""


def test_an_interrupted_cell_on_ranks_takes_its_view_away(kernel, gate):
    cell = kernel.execute(f"%%ranks -n 2\nprint('up to here')\nopen('{gate.path}.' + str(rank)).read()")
    kernel.until(lambda: kernel.markup().count("up to here") == 2)
    kernel.manager.interrupt_kernel()
    kernel.until(lambda: cell in kernel.over)
    assert set(kernel.models) == kernel.closed
    *told, error = kernel.outputs[cell]
    assert error["ename"] == "KeyboardInterrupt" and "its report stands above" in "".join(error["traceback"])
    assert "all 2 ranks: up to here\n" in texts(told)
    assert "interrupted: cell" in texts(told) and "the next %%ranks cell starts new ones" in texts(told)
    assert texts(kernel.run("%%ranks -n 2\nrank + 1")) == "rank 0: 1\nrank 1: 2\n"


def test_a_million_lines_of_each_rank_neither_flood_the_page_nor_lose_their_end(kernel):
    source = (
        "import sys\nlines = ['line %d of rank %d\\n' % (n, rank) for n in range(1000)]\n"
        "for k in range(1000):\n    for line in lines:\n        sys.stdout.write(line)\nprint('the end')\n'over'"
    )
    outputs = kernel.run(f"%%ranks -n 2 --timeout 120\n{source}")
    said = texts(outputs)
    assert len(said) < 110_000
    for rank in (0, 1):
        assert f"rank {rank}:\nline 0 of rank {rank}\n" in said
        assert f"line 999 of rank {rank}\nthe end\n'over'\n" in said
    assert said.count("kB are left out here ...]") == 2
    sent = sum(len(state.get("value", "")) for state in kernel.models.values())
    assert sent < 10_000


def test_the_panel_and_a_view_are_shown_with_texts_that_do_not_depend_on_the_moment(kernel, gate):
    (panel,) = kernel.run("panel = cl.views.launch_panel(held, ranks=2)\npanel")
    assert panel["data"]["text/plain"] == "launch panel for held: 2 ranks, site local, device auto"
    assert {WIDGET, "image/png"} <= set(panel["data"])
    (shown,) = kernel.run(f"run = panel.submit(held, {gate.path!r})\ncl.views.live(run)")
    assert shown["data"]["text/plain"] == "live view of held on 2 ranks"
    kernel.until(lambda: kernel.markup().count("at the gate") == 4)
    kernel.click(kernel.button("Run"))  # its program lacks an argument: this run fails, after the one that goes on
    gate.open(2)
    kernel.until(lambda: "missing 1 required positional argument" in kernel.markup())
    kernel.run("panel.stop()\npanel.close()")


PAYLOAD = "from collectlab import views\nview = views.payload_counter('{}')\nview"


def test_a_cell_that_is_run_again_closes_what_it_had_shown(kernel):
    for _ in range(3):
        kernel.run(PAYLOAD.format("all_reduce"), "one")
        kernel.run("views.payload_counter('broadcast')", "other")
    assert kernel.pictures() == ["ncclAllReduce on 2 ranks", "ncclBroadcast on 2 ranks"]
    kernel.run("view.set(nranks=3, elements=6)\nview", "again")
    kernel.run("2", "one")  # shows nothing, and so nothing else
    assert kernel.pictures() == ["ncclAllReduce on 3 ranks", "ncclBroadcast on 2 ranks"]
    kernel.run(PAYLOAD.format("reduce"), "one")
    assert kernel.pictures()[0] == "ncclAllReduce on 3 ranks", "the other cell still shows it"
    for _ in range(2):
        kernel.run("before = view.widget()\nview", "again")
    assert texts(kernel.run("print(view.widget() is before)")) == "True\n", "shown again, it stays where else it is"
    assert kernel.pictures() == ["ncclBroadcast on 2 ranks", "ncclReduce on 2 ranks"]


def test_what_is_part_of_another_widget_is_not_closed(kernel):
    kernel.run(PAYLOAD.format("gather"), "one")
    kernel.run("import ipywidgets\ntab = ipywidgets.Tab([view.widget()])\ntab", "boxed")
    kernel.run(PAYLOAD.format("scatter"), "one")
    assert kernel.pictures() == ["ncclGather on 2 ranks", "ncclScatter on 2 ranks"]


def test_without_the_name_of_a_cell_nothing_is_closed(kernel):
    for _ in range(2):
        kernel.run(PAYLOAD.format("gather"))
    assert len(kernel.pictures()) == 2
