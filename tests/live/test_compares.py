"""A notebook with cells that take long enough to be shown while they run compares with itself, again and again."""

import subprocess
import sys

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

CELLS = [
    "import time\nimport collectlab as cl\n%load_ext collectlab",
    "%%ranks -n 2\nimport time\nfor step in range(12):\n    ctx.progress(step + 1, 12)\n    print('step', step)\n"
    "    time.sleep(0.1)\nstep",
    "def slow(ctx):\n    for step in range(15):\n        ctx.progress(step + 1, 15)\n        time.sleep(0.1)\n"
    "    return ctx.comm.allreduce(ctx.rank)\n\nranks = cl.launch(2, device='cpu')\nrun = ranks.submit(slow)\nrun",
    "cl.views.live(run)",
    "run.wait().results",
    "cl.run(slow, ranks=2, device='cpu').results",
    "cl.views.launch_panel(slow, ranks=2)",
    "run",
    "ranks.stop()",
]


def test_outputs_are_the_same_each_time(tmp_path):
    path = tmp_path / "cells.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in CELLS]), path)
    nbval = ["pytest", "-q", "--nbval", "-p", "no:cacheprovider", str(path)]
    for command in (["collectlab", "run", str(path), "--save"], nbval):
        found = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=tmp_path)
        assert found.returncode == 0, found.stdout + found.stderr
    saved = nbformat.read(path, as_version=4)
    cells = [[dict(output.get("data", {"text": output.get("text")})) for output in c.outputs] for c in saved.cells]
    steps = "".join(f"step {n}\n" for n in range(12))
    assert cells[1] == [{"text": f"all 2 ranks:\n{steps}11\n"}], "the view that came and went left nothing"
    assert cells[2] == [{"text/plain": "Run(slow on 2 ranks: running)"}]
    assert cells[3][0]["text/plain"] == "live view of slow on 2 ranks" and "image/png" in cells[3][0]
    assert cells[4] == cells[5] == [{"text/plain": "[1, 1]"}]
    assert cells[6][0]["text/plain"] == "launch panel for slow: 2 ranks, site local, device auto"
    assert cells[7] == [{"text/plain": "Run(slow on 2 ranks: done)"}]
