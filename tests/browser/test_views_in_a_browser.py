"""Each view in JupyterLab, used with mouse and keys: it then says and shows what it does in this process."""

import pytest

from collectlab import views

pytestmark = pytest.mark.needs("browser")

SETUP = """import numpy as np

from collectlab import kernels, layout, overlap, simulate, views
from collectlab.trace import Clock, Event, Trace

xs = [np.arange(4) + 10 * rank for rank in range(4)]
run = simulate(kernels.two_phase.all_reduce, np.arange(8.0), ranks=4)
cards = [kernels.two_phase.all_reduce_cost(4, 8, 8, rank) for rank in range(4)]
mesh = simulate(kernels.mesh.all_reduce, np.arange(8.0), ranks=4)

timed = [Event("store", 0, 0, "w", began=10, ended=11), Event("load", 1, 0, "w", began=10.5, ended=12.5),
         Event("notify", 1, 0, "s", row=0, at_least=1, began=12.5, ended=13),
         Event("wait", 0, 1, "s", row=0, at_least=1, began=11, ended=13),
         Event("notify", 0, 1, "s", row=1, at_least=1, began=13.2, ended=13.3),
         Event("wait", 1, 0, "s", row=1, at_least=1, began=13, ended=13.3)]
late = Trace(2, timed, clocks={rank: Clock(10.0, 14.0, []) for rank in range(2)})
phases = [{"name": "forward", "retained": 200}, {"name": "gather", "retained": 200, "temporary": {"weights": 800}}]

def plan(ctx, x):
    gradient, shard = ctx.buffer("gradient", x), ctx.buffer("shard", np.zeros(2))
    ctx.reduce_scatter(gradient, shard).wait()
    return shard"""
STEPPED = {
    "ownership": "views.ownership(['reduce_scatter', 'all_gather'], xs, step=0)",
    "arrivals": "views.arrivals(run, step=0)",
    "traffic": "views.traffic(run, cards, step=0)",
    "kernel_player": "views.kernel_player(run, cards)",
    "side_by_side": "views.side_by_side(views.kernel_player(mesh), views.kernel_player(run))",
    "lanes": "views.lanes(late)",
    "memory_timeline": "views.memory_timeline(phases)",
    "modular_lab": "views.modular_lab(8, 3)",
}
SET = {
    "payload_counter": "views.payload_counter()",
    "rank_map": "views.rank_map(layout.RankMap(['gpu0', 'gpu1']), layout.Partition.equal(8, 2))",
    "cost_explorer": "views.cost_explorer()",
    "streams": "views.streams(overlap.simulate(plan, np.arange(4.0), ranks=2))",
}
GO_ON = {"launch_panel", "live"}  # by themselves: two of them never say the same
SOURCES = STEPPED | SET
EVERY_VIEW = pytest.mark.parametrize("name", SOURCES)
EVERY_STEPPED_VIEW = pytest.mark.parametrize("name", STEPPED)


class Shown:
    """A view on the page, beside the same view in this process, to which the test does the same."""

    def __init__(self, cell, view):
        self.cell, self.view, self.page = cell, view, cell.page
        self.image = cell.locator(".widget-image")
        self.caption = cell.locator(".widget-html p")
        self.words = cell.locator(".widget-html pre")

    def button(self, name):
        return self.cell.get_by_role("button", name=name, exact=True)

    def field(self, name):
        return self.cell.get_by_label(name, exact=True)

    def agrees(self, expect):
        """The caption is the view's, and the picture, named by it, is the one that is drawn here of that state."""
        expect(self.caption).to_have_text(self.view.caption())
        expect(self.image).to_have_attribute("title", self.view.caption())
        self.image.evaluate("image => image.decode()")
        fresh = self.view.alike()
        fresh.widget()
        assert self.image.get_attribute("src") == bytes(fresh._image.value).decode()
        fresh.close()


@pytest.fixture(scope="module")
def tab(course, opened):
    """The notebook with every view, run to its end."""
    tab = opened(course.write("views.ipynb", [SETUP, *SOURCES.values()]))
    tab.run_all()
    return tab


@pytest.fixture(scope="module")
def namespace():
    found = {}
    exec(compile(SETUP, "/tmp/ipykernel_1/1.py", "exec"), found)  # as a cell is called
    return found


@pytest.fixture
def shown(tab, expect, namespace):
    """Finds a view on the page, in its first state."""

    def find(name):
        place = 1 + list(SOURCES).index(name)
        view = Shown(tab.cells.nth(place), eval(SOURCES[name], namespace))
        view.cell.scroll_into_view_if_needed()
        if name in STEPPED:
            view.button("Reset").click()
            view.view.set(step=0)
            view.agrees(expect)
        return view

    return find


def press(page, name, key="Enter"):
    """Go to the button with the tabulator key, as somebody without a mouse does, and press it."""
    for _ in range(20):
        if page.evaluate("document.activeElement.textContent") == name:
            return page.keyboard.press(key)
        page.keyboard.press("Tab")
    pytest.fail(f"the tabulator key does not lead to {name!r}")


def test_every_view_is_here():
    assert {*SOURCES} | GO_ON == {*views.__all__}


def test_every_cell_shows_its_view(tab, expect):
    expect(tab.page.locator(".widget-image")).to_have_count(len(SOURCES))
    assert tab.errors == [] and tab.faults == []


@EVERY_VIEW
def test_caption_and_picture(shown, expect, name):
    shown(name).agrees(expect)


@EVERY_STEPPED_VIEW
def test_stepping_with_the_mouse(shown, expect, name):
    it = shown(name)
    pictures = [it.image.get_attribute("src")]
    for label, n in (("Step", 1), ("Step", 1), ("Back", -1)):
        it.button(label).click()
        it.view.step(n)
        it.agrees(expect)
        pictures.append(it.image.get_attribute("src"))
    assert len(set(pictures)) == 3 and pictures[1] == pictures[3]
    it.button("Reset").click()
    it.view.set(step=0)
    it.agrees(expect)


def test_stepping_in_haste(shown, expect):
    it = shown("kernel_player")
    for label, presses, n in (("Step", 8, 8), ("Back", 4, -4), ("Step", 6, 6)):  # to a state not seen on the way
        it.button(label).click(click_count=presses)
        it.view.step(n)
    it.agrees(expect)


@EVERY_STEPPED_VIEW
def test_stepping_with_the_keys(shown, expect, name):
    it = shown(name)
    it.cell.locator(".jp-InputPrompt").click()  # the cell is chosen, nothing in it has the focus
    it.caption.click()
    press(it.page, "Step")
    it.view.step()
    it.agrees(expect)
    press(it.page, "Step", "Space")
    it.view.step()
    it.agrees(expect)
    it.field("state").focus()
    it.page.keyboard.press("ArrowDown")
    it.page.keyboard.press("Enter")
    it.view.step(-1)
    it.agrees(expect)


@EVERY_STEPPED_VIEW
def test_play_goes_on_to_the_last_state(shown, expect, name):
    it = shown(name)
    it.field("state").fill(str(it.view.last - 1))
    it.page.keyboard.press("Enter")
    it.view.set(step=it.view.last - 1)
    it.agrees(expect)
    it.button("Play").click()
    it.view.step()
    it.agrees(expect)
    expect(it.button("Play")).to_be_visible()
    it.button("Step").focus()
    it.page.keyboard.press("Enter")  # leads nowhere
    it.agrees(expect)
    expect(it.button("Step")).to_be_focused()


@EVERY_VIEW
def test_the_picture_in_words(shown, expect, name):
    it = shown(name)
    expect(it.words).to_have_count(0)
    it.cell.locator(".widget-image").click()
    press(it.page, "The picture in words")
    assert it.words.text_content() == it.view.text()
    it.button("The picture in words").click()
    expect(it.words).to_have_count(0)


def test_the_player_goes_to_the_next_barrier(shown, expect):
    it = shown("kernel_player")
    it.button("Next barrier").click()
    it.view.next_barrier()
    it.agrees(expect)


def test_the_payload_counter_with_the_keys(shown, expect):
    it = shown("payload_counter")
    it.field("elements").fill("64")
    it.page.keyboard.press("Tab")
    it.view.set(elements=64)
    it.agrees(expect)
    it.field("library").focus()
    for key in ("Space", "ArrowDown", "Enter"):  # JupyterLab takes an arrow for itself while the list is shut
        it.page.keyboard.press(key)
    libraries = it.field("library").locator("option").all_text_contents()
    it.view.set(library=libraries[libraries.index(it.view.settings["library"]) + 1])
    it.agrees(expect)


def test_what_is_not_accepted_is_said_and_the_field_goes_back(shown, expect):
    it = shown("cost_explorer")
    before = it.field("ranks").input_value()
    it.field("ranks").fill("-3")
    it.page.keyboard.press("Enter")
    expect(it.cell.get_by_role("alert")).to_contain_text("Not accepted.")
    assert it.field("ranks").input_value() == before
    it.field("ranks").fill("16")
    it.page.keyboard.press("Enter")
    it.view.set(nranks=16)
    it.agrees(expect)


def test_two_ranks_swap_their_places(shown, expect):
    it = shown("rank_map")
    it.button("Swap").click()
    it.view.swap(0, 1)
    it.agrees(expect)


# How it looks

FITS = """cell => {
    const root = cell.querySelector(".jp-OutputArea-output .jupyter-widgets");
    return root.scrollWidth == root.clientWidth && root.querySelector("img").clientWidth < 950;
}"""


def test_a_page_a_little_narrower_than_a_picture_shrinks_it_and_scrolls_nothing(tab, shown):
    it = shown("payload_counter")
    size = tab.page.viewport_size
    tab.page.set_viewport_size({"width": 1350, "height": 900})
    tab.page.wait_for_function(FITS, arg=it.cell.element_handle(), timeout=10_000)
    tab.page.set_viewport_size(size)


LOOKS = [(theme, size) for theme in ("Light", "Dark") for size in ((1400, 900), (1000, 700))]
# The parts of a widget that reach over its edge or their own; a picture too wide to be read when shrunk is scrolled
CUT = """cell => {
    const root = cell.querySelector(".jp-OutputArea-output .jupyter-widgets"), edge = root.getBoundingClientRect();
    if (getComputedStyle(root).overflowX != "auto") return ["a picture that cannot be scrolled"];
    return [...root.querySelectorAll(".jupyter-widgets:not(img), button, input, select, p")]
        .filter(part => part.getBoundingClientRect().width)
        .filter(part => part.getBoundingClientRect().right > edge.right + 1
            || (part.tagName != "INPUT" && part.clientWidth && part.scrollWidth > part.clientWidth + 1))
        .map(part => part.className + " " + part.textContent.slice(0, 40));
}"""
READ = "image => image.getBoundingClientRect().width >= 0.85 * image.naturalWidth"  # small labels can be read


@pytest.fixture(scope="module", params=LOOKS, ids=lambda look: f"{look[0]}-{look[1][0]}")
def look(request, tab):
    theme, (width, height) = request.param
    tab.page.set_viewport_size({"width": width, "height": height})
    if theme not in tab.page.locator("body").get_attribute("data-jp-theme-name"):
        tab.menu("Settings", "Theme", f"JupyterLab {theme}")
        tab.page.wait_for_selector(f"body[data-jp-theme-name='JupyterLab {theme}']", state="attached")
    return f"{theme.lower()}-{width}"


def test_nothing_is_cut_off(look, tab, shown, shots):
    cut = {}
    for name in SOURCES:
        it = shown(name)
        if name in STEPPED:
            it.button("Step").click()
        cut[name] = it.cell.evaluate(CUT)
        assert it.image.evaluate(READ)
        it.cell.screenshot(path=shots / f"view-{name}-{look}.png")
    tab.page.screenshot(path=shots / f"page-{look}.png")
    assert {name: parts for name, parts in cut.items() if parts} == {}


def test_no_rule_of_accessibility_is_broken_seriously(look, tab, shown):
    from axe_playwright_python.sync_playwright import Axe

    shown("kernel_player").button("The picture in words").click()
    found = Axe().run(tab.page, context=".jp-OutputArea-output .jupyter-widgets").response["violations"]
    shown("kernel_player").button("The picture in words").click()
    grave = [(rule["id"], node["html"]) for rule in found for node in rule["nodes"]
             if rule["impact"] in ("serious", "critical")]  # fmt: skip
    assert grave == []
