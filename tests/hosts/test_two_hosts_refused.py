"""What stands in the way of ranks on two hosts is said before or while they start, and strangers get nothing."""

import pytest
from two_hosts import NotebookError

pytestmark = pytest.mark.needs("second host")


@pytest.mark.parametrize(
    ("text", "said"),
    (
        ("alpha\nbeta 4\n", "names beta 4; accepted: a host's name; name:4, or name slots=4, for four ranks"),
        ("# nobody\n\n", "names no host"),
        (b"\xff\xfe\x00", "cannot be read"),
        (None, "cannot be read (No such file or directory)"),
    ),
)
def test_a_hosts_file_that_will_not_do_is_told_before_anything_starts(hosts, notebook, tmp_path, text, said):
    file = tmp_path / "hosts"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    notebook.run(f"import os; os.environ['COLLECTLAB_HOSTS'] = {str(file)!r}")
    try:
        with pytest.raises(NotebookError, match="site 'hosts' needs MPICH, and a file of hosts") as raised:
            notebook.run("cl.launch(2, site='hosts')")
    finally:
        notebook.run(f"os.environ['COLLECTLAB_HOSTS'] = {str(hosts.file)!r}")
    assert said in str(raised.value)
    assert not hosts.left()


@pytest.mark.parametrize("address", ("10.77.31.2", "0.0.0.0", "nowhere.invalid", "a..b"))
def test_an_address_that_is_not_this_hosts_is_refused(notebook, address):
    notebook.run(f"import os; os.environ['COLLECTLAB_ADDRESS'] = {address!r}")
    try:
        with pytest.raises(NotebookError, match=r"COLLECTLAB_ADDRESS is .*; an address of this host is accepted"):
            notebook.run("cl.launch(2, site='hosts')")
    finally:
        notebook.run("del os.environ['COLLECTLAB_ADDRESS']")


def test_a_folder_that_the_other_host_does_not_see_is_named(hosts, notebook):
    private = hosts.folder / "private" / "runs"
    notebook.run(f"import os; os.environ['COLLECTLAB_RUNS'] = {str(private)!r}")
    try:
        with pytest.raises(NotebookError) as raised:
            notebook.run("cl.launch(4, site='hosts')")
        notebook.run(f"left = os.listdir({str(private)!r})")
        assert notebook("left") == []
    finally:
        notebook.run(f"os.environ['COLLECTLAB_RUNS'] = {str(hosts.folder / 'runs')!r}")
    said = str(raised.value)
    assert f"host beta does not share {private}, where the runs lie" in said
    assert "name a folder that all hosts see in the variable COLLECTLAB_RUNS" in said
    hosts.gone()


def test_a_host_that_does_not_reach_this_one_says_so(hosts, notebook):
    notebook.run("import os; os.environ['COLLECTLAB_ADDRESS'] = '127.0.0.1'")
    try:
        with pytest.raises(NotebookError) as raised:
            notebook.run("cl.launch(4, site='hosts')")
    finally:
        notebook.run("del os.environ['COLLECTLAB_ADDRESS']")
    hosts.gone()
    assert "did not start" in str(raised.value)
