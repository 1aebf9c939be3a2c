"""What the README lists is what there is."""

import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_its_links_and_the_files_that_it_names_are_there():
    named = re.findall(r"\]\(([^)]+)\)", README) + re.findall(r"`((?:collectlab|launch|tests)/[\w./-]+)`", README)
    assert len(named) > 20 and [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_its_table_of_the_course_has_every_notebook_in_order():
    rows = re.findall(r"^\| \[(\d\d) [^]]+\]\(notebooks/([^)]+)\) \|", README, re.M)
    assert [file for _, file in rows] == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert all(file.startswith(number) for number, file in rows)


def test_its_table_of_sites_has_every_site():
    table = README[README.index("| site |") : README.index("`COLLECTLAB_SITE`")]
    sites = {path.stem for path in ROOT.glob("launch/sites/*.toml")}
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.M)) == sites


def test_the_time_that_it_gives_is_that_of_the_notebooks():
    needed = []
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        prose = "\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown")
        needed.append(int(re.search(r"^Time needed: (\d+) minutes", prose, re.M)[1]))
    least, most = map(int, re.search(r"^Each takes (\d+) to (\d+) minutes", README, re.M).groups())
    assert (least, most) == (min(needed), max(needed))
    assert "a quarter of an hour more" in README and "half an hour more: nine and a half hours in all" in README
    assert abs(sum(needed) + 15 + 30 - 9.5 * 60) < 15
