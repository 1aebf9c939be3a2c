"""What every view has: a text that is complete without the picture, a static picture, and a widget.

A view computes nothing that the ground floor defines. It has settings, which its controls change; what the
settings say is drawn again on every change. In JupyterLab the widget is shown, where widgets do not run (a page
on GitHub, nbconvert) the static picture, and in a terminal the text.
"""

import asyncio
import base64
import copy
import functools
import html
import threading

from collectlab.views import outputs
from collectlab.views.drawing import Drawing
from collectlab.views.words import is_whole

# Seconds of rest after which a step is drawn before somebody asks for it: the next one once the page has shown the
# last, and the one after that, for a double click, when none is under way
AHEAD = 0.02, 0.12
KEPT = len(AHEAD) + 3  # finished pictures: also the one that is shown, and the two before it
READABLE = 860  # pixels; a narrower page scrolls the picture

_DATA = b"data:image/png;base64,"
_SAID = "<p {} style='margin: 4px 0; line-height: 1.4; min-height: {}em'>{}</p>"
# what is too wide can be scrolled, also with the keys
_WORDS = "<pre tabindex='0' style='overflow-x: auto'>{}</pre>"


CHANGING = threading.RLock()


def alone(change):
    """The method, which one thread at a time can call: controls are heard in another one than that of the cells."""

    @functools.wraps(change)
    def changed(*args, **kwargs):
        with CHANGING:
            return change(*args, **kwargs)

    return changed


class NotAccepted(ValueError):
    """A setting that a view does not take. `plain` says it to somebody who turned a control and wrote no call."""

    def __init__(self, message, plain):
        super().__init__(message)
        self.plain = plain


class View:
    """One picture that can be changed. `view.set(...)` does what the controls do.

    A view gives: `_settings`, a dict name -> value; `_check(settings)`, which returns the settings with what
    must follow, or raises ValueError; `_paint(drawing, static)`, for which they alone matter; `text()`;
    `_controls(widgets)`, a dict of the widgets that change a setting and a list of rows; and `caption()`, one
    sentence.
    """

    WIDTH = 960  # pixels
    LINES = 1  # that its longest caption takes; there is always room for so many, so that the picture does not move
    SHOWS_MORE = False  # whether the static picture shows more than the one that can be stepped

    def __init__(self, **settings):
        self.__dict__.update(self._bare())
        self._settings = self._check(settings)

    # What it shows

    def text(self):
        """Everything the picture says, as text: str. The same settings give the same text."""
        raise NotImplementedError

    def caption(self):
        """What the picture shows now, in one sentence: str."""
        raise NotImplementedError

    def figure(self):
        """The static picture: a Matplotlib Figure of its own, which pyplot does not know."""
        drawing = Drawing(self.WIDTH)
        self._paint(drawing, static=True)
        return drawing.finish()

    def png(self):
        """The static picture as PNG: bytes."""
        drawing = Drawing(self.WIDTH)
        self._paint(drawing, static=True)
        return drawing.png()

    @alone
    def __str__(self):
        return self.text()

    __repr__ = __str__

    @alone
    def _repr_mimebundle_(self, include=None, exclude=None):
        bundle = {"text/plain": self.text()}
        outputs.note(self)
        try:
            widget = self.widget()
        except ImportError:  # without ipywidgets the picture is shown
            widget = None
        shown = None if self._image is None or self.SHOWS_MORE else self._png
        bundle["image/png"] = base64.b64encode(shown or self.png()).decode("ascii")
        if widget is None:
            return bundle
        bundle["application/vnd.jupyter.widget-view+json"] = {
            "version_major": 2,
            "version_minor": 0,
            "model_id": widget.model_id,
        }
        return bundle, {"image/png": {"alt": self.caption()}}

    # How it changes

    @property
    def settings(self):
        """The settings as they are now: a dict of its own."""
        return dict(self._settings)

    @alone
    def set(self, **settings):
        """Change settings, as the controls do; returns the view. ValueError names the one that is not accepted."""
        unknown = sorted(settings.keys() - self._settings.keys())
        if unknown:
            raise ValueError(f"set: this view has no {unknown[0]!r}; it has {', '.join(self._settings)}")
        self._settings = self._check(self._settings | settings)
        if self._widget is not None:
            self._show()
        return self

    def alike(self):
        """Another view of the same, with settings and a widget of its own."""
        return copy.copy(self)

    def __getstate__(self):
        """What a copy, also a pickled one, has of this view: all but the widget."""
        parts = {name: None for name, value in self.__dict__.items() if hasattr(value, "model_id")}
        return self.__dict__ | parts | self._bare() | {"_settings": dict(self._settings)}

    def __deepcopy__(self, memo):
        return self.alike()

    def _bare(self):
        """The attributes of a view without a widget: a dict."""
        parts = dict.fromkeys(("_widget", "_image", "_png", "_drawing"))
        return parts | {"_inputs": {}, "_buttons": [], "_setting": False}

    # The widget

    @alone
    def widget(self):
        """The ipywidgets widget, made when it is first asked for."""
        if self._widget is None:
            import ipywidgets
            import traitlets

            self._drawing = Drawing(self.WIDTH)
            rows = self._heard_controls(ipywidgets)
            self._image = ipywidgets.Image(
                format="url",
                layout={
                    "max_width": "100%", "min_width": f"{READABLE}px", "object_fit": "contain",
                    "margin": "2px 0",  # one at its sides would be added to 100%, and be scrolled
                    "align_self": "flex-start",  # in its own size: to be stretched blurs it, and takes time
                },
            )  # fmt: skip
            # ipywidgets shows no tooltip, and so gives an image no name, where there is no description
            self._image.add_traits(description=traitlets.Unicode("").tag(sync=True))
            self._caption = ipywidgets.HTML()
            self._words_button = ipywidgets.ToggleButton(
                description="The picture in words", tooltip="shows or hides the text form",
                layout={"width": "auto", "align_self": "flex-start"},
            )
            self._words_button.observe(lambda _: self._say(), "value")
            self._in_words = ipywidgets.HTML()
            self._widget = ipywidgets.VBox([*rows, self._caption, self._image, self._words_button, self._in_words])
            self._show()
        return self._widget

    def _button(self, widgets, name, action, hint):
        button = widgets.Button(description=name, tooltip=hint, layout={"width": "auto"})

        def act(pressed):
            action(pressed)
            self._look_ahead()

        button.on_click(act)
        self._buttons.append((button, act))
        return button

    def _heard_controls(self, widgets):
        """The rows of the widget's controls, each of which is heard from now on."""
        self._inputs, rows = self._controls(widgets)
        for name, control in self._inputs.items():
            control.observe(self._changed, "value")
            control.collectlab_setting = name
        return rows

    @alone
    def _changed(self, change):
        if not self._setting:
            new = change["new"]
            if isinstance(new, float) and new.is_integer():
                new = int(new)  # number fields give floats, so that a fraction can be refused and is not cut off
            try:
                self.set(**{change["owner"].collectlab_setting: new})
                self._look_ahead()
            except ValueError as error:  # the control goes back, and the reason stands where the caption was
                self._show()
                said = html.escape(getattr(error, "plain", str(error)))
                self._caption.value = self._spoken("role='alert'", f"<b>Not accepted.</b> {said}")

    def _spoken(self, how, what):
        """A sentence where the caption stands: HTML."""
        return _SAID.format(how, 1.4 * self.LINES, what)

    def _show(self):
        """Bring picture, controls and words in line with the settings; the picture, which takes longest, first."""
        self._png, caption = self._picture(), self.caption()
        with self._image.hold_sync():  # in one message, else the page shows the picture twice
            # a page fetches what is not in the address itself from another process, and shows it a frame later
            self._image.value, self._image.tooltip = _DATA + base64.b64encode(self._png), caption
        self._caption.value = self._spoken("aria-live='polite'", html.escape(caption))
        self._set_controls()
        self._say()

    def _set_controls(self):
        """Have the controls say what the settings are."""
        self._setting = True
        try:
            for name, control in self._inputs.items():
                if control.value != self._settings[name]:
                    control.value = self._settings[name]
        finally:
            self._setting = False

    def _picture(self):
        """The picture that the settings ask for, as PNG: bytes."""
        self._paint(self._drawing, static=False)
        return self._drawing.png()

    def _look_ahead(self):
        """Somebody has used the controls: what can be made ready for the next time, is."""

    def _say(self):
        """The picture in words, while that is wanted."""
        wanted = self._words_button.value
        self._in_words.value = _WORDS.format(html.escape(self.text())) if wanted else ""
        self._in_words.layout.display = None if wanted else "none"

    def forget(self):
        """Let go of finished pictures, where there are any: each is drawn anew when it is asked for."""

    @alone
    def close(self):
        """Take the widget off the page and let go of its picture. It may be shown again."""
        if self._widget is None:
            return
        for control in (*self._inputs.values(), self._words_button):
            control.unobserve_all()
        for button, action in self._buttons:
            button.on_click(action, remove=True)
        _close(self._widget)
        self.__dict__.update(self.__getstate__())


class SteppedView(View):
    """A view whose setting `step` goes from 0 to `last`. Where it plays, a step takes `pace` seconds.

    Once somebody steps, the pictures that are likely asked for next are drawn while the kernel has nothing to do. Not
    before: no page tells its kernel that somebody looks at a view, so each view of each Run All, and of nbconvert,
    would be drawn twice for the one that is stepped. The first step takes the time of a picture more than the others.
    """

    pace = 0.9
    # _finished is settings -> picture, the one that was used last at the end; _ahead the call that is to draw ahead;
    # _turn which press of _play is the present one, and _task what goes on since

    def __init__(self, **settings):
        super().__init__(**settings)
        self._was, self._way = self._settings["step"], 1  # the step that was shown, and which way it goes on

    @property
    def last(self):
        """The number of the last step."""
        raise NotImplementedError

    @alone
    def step(self, n=1):
        """Go n steps forward, or back where n is negative, as the buttons do; it stops at either end."""
        return self.set(step=min(max(self._settings["step"] + n, 0), self.last))

    def _checked_step(self, call, settings, last=None):
        """The settings, where there is such a step, up to `last` or that of the view; ValueError otherwise."""
        step, last = settings["step"], self.last if last is None else last
        if not is_whole(step) or not 0 <= step <= last:
            raise ValueError(f"{call}: step is a whole number, 0 to {last}, not {step!r}")
        return settings | {"step": int(step)}

    def _bare(self):
        return super()._bare() | dict.fromkeys(("_ahead", "_play", "_turn", "_task")) | {"_finished": {}}

    # Pictures that are there before they are asked for

    def _picture(self):
        picture = self._finished.pop(self._asked(), None) or super()._picture()
        self._put_by(self._asked(), picture)
        return picture

    def forget(self):
        """Let go of finished pictures: each is drawn anew when it is asked for."""
        self._finished.clear()

    def _asked(self):
        return tuple(self._settings.values())

    def _put_by(self, asked, picture):
        self._finished[asked] = picture
        if len(self._finished) > KEPT:
            del self._finished[next(iter(self._finished))]

    def _look_ahead(self):
        self._stop_looking()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody but a kernel has one
            return
        likely, rest = self._lacking()
        if likely is not None:
            self._ahead = loop.call_later(rest, self._draw_ahead, likely)

    def _stop_looking(self):
        if self._ahead is not None:
            self._ahead.cancel()
        self._ahead = None

    def _lacking(self):
        """A view like this one at the first of the next steps whose picture is not there, and the rest before that.

        The next steps go in the same direction; after the last one comes the first.
        """
        likely = self.alike()  # so that this view never says anything else than what it shows
        for n, rest in enumerate(AHEAD, 1):
            step = self._was + n * self._way
            likely.set(step=step if 0 <= step <= self.last else 0)
            if likely._asked() not in self._finished:
                return likely, rest
        return None, 0

    @alone
    def _draw_ahead(self, likely):
        if self._widget is None:  # closed by now
            return
        likely._paint(self._drawing, static=False)
        self._put_by(likely._asked(), self._drawing.png())
        self._look_ahead()

    # The widget

    def _step_controls(self, widgets):
        # ipywidgets' sliders and its Play have no name that a screen reader could say. Also where a button leads
        # nowhere it stays on: one that goes off under the keys loses the focus
        now = widgets.BoundedIntText(
            self._settings["step"], min=0, max=self.last, description="state", layout={"width": "120px"},
            style={"description_width": "initial"},
        )
        reset = self._button(widgets, "Reset", lambda _: self.set(step=0), "back to the first state")
        back = self._button(widgets, "Back", lambda _: self.step(-1), "one state back")
        step = self._button(widgets, "Step", lambda _: self.step(), "one state forward")
        self._play = widgets.ToggleButton(
            description="Play", tooltip="goes through the states, or stops there", layout={"width": "auto"}
        )
        self._play.observe(lambda change: self._play_or_stop(change["new"]), "value")
        return {"step": now}, [widgets.HBox([reset, back, step, self._play, now], layout={"flex_flow": "row wrap"})]

    def _play_or_stop(self, play):
        """Go through the states to the last one, in the event loop of the kernel; from the last, begin anew."""
        self._turn = turn = object() if play else None
        self._play.description = "Pause" if play else "Play"
        if play:
            if self._settings["step"] == self.last:
                self.set(step=0)
            self._task = asyncio.get_running_loop().create_task(self._go_on(turn))

    async def _go_on(self, turn):
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._turn is turn and self._settings["step"] < self.last:
            due = max(due + self.pace, loop.time())
            likely, _ = self._lacking()
            if likely is not None:
                self._draw_ahead(likely)
            await asyncio.sleep(due - loop.time())
            with CHANGING:
                if self._turn is turn:
                    self.step()
        with CHANGING:
            if self._turn is turn:
                self._play.value = False

    def _show(self):
        self._stop_looking()
        step = self._settings["step"]
        if step != self._was:
            self._way, self._was = 1 if step > self._was or not step else -1, step
        if self._inputs["step"].max != self.last:
            self._setting = True
            self._inputs["step"].max, self._setting = self.last, False
        super()._show()

    @alone
    def close(self):
        """Take the widget off the page, and stop it."""
        if self._play is not None:
            self._play.unobserve_all()
        self._stop_looking()
        super().close()


def _close(widget):
    """Close the widget with all that it is made of; ipywidgets leaves layouts and styles behind."""
    parts = [*getattr(widget, "children", ()), getattr(widget, "layout", None), getattr(widget, "style", None)]
    widget.close()
    for part in parts:
        if part is not None:
            _close(part)
