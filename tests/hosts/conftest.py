"""Two hosts for the tests here, and a notebook on the first of them."""

import gc
import shutil

import pytest
from two_hosts import Hosts


@pytest.fixture(scope="session")
def _hosts(tmp_path_factory):
    found = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        found.build()
        yield found
    finally:
        found.tear_down()


@pytest.fixture
def hosts(_hosts):
    """Two hosts, with nothing on them before and after but the notebook."""
    yield _hosts
    if _hosts._notebook:
        _hosts.notebook.run("if 'ranks' in globals(): ranks.stop()")
    gc.collect()
    _hosts.gone()
    shutil.rmtree(_hosts.folder / "runs", ignore_errors=True)


@pytest.fixture
def notebook(hosts):
    """A notebook on the first host; call it with an expression."""
    return hosts.notebook


@pytest.fixture
def ranks(notebook):
    """The name, in the notebook, of four warm ranks: 0 and 1 on alpha, 2 and 3 on beta."""
    notebook.run("ranks = cl.launch(4, site='hosts')")
    return "ranks"
