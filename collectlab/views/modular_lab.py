"""The modular lab: x -> (x + a) mod m on a ring of m places, and an all-gather whose chunks arrive in that order."""

import math
import re
from reprlib import repr

from collectlab.views.drawing import number_of
from collectlab.views.modular_picture import NOT, RULE, ModularPicture, plus
from collectlab.views.view import NotAccepted, SteppedView
from collectlab.views.words import is_whole, table

MOST = 64  # places that can be drawn


def modular_lab(m=8, a=1, *, step=0, residue="", period=""):
    """The orbit of 0 under x -> (x + a) mod m, and an all-gather on m ranks in that order: a `ModularLab`.

    m        places on the ring, and ranks: 1 to 64
    a        what each step adds: a whole number
    step     how many steps have been made, 0 to m
    residue  your prediction of where the next step leads; "" for none
    period   your prediction of how many steps lead back to 0; "" for none

    The period is m / gcd(a, m), the order of a in the integers mod m. ValueError names what is not accepted.
    """
    of = step + 1 if is_whole(step) else 1
    return ModularLab(m=m, a=a, step=step, residue=residue, period=period, of=of)


class ModularLab(SteppedView):
    """The view that `modular_lab` returns. Settings: m, a, step, residue, period; of: the step residue is for."""

    def _check(self, settings):
        call = f"modular_lab(m={settings['m']!r}, a={settings['a']!r})"
        if not is_whole(settings["m"]) or not 1 <= settings["m"] <= MOST:
            said = f"is a whole number, 1 to {MOST}, not {settings['m']!r}"
            raise NotAccepted(f"{call}: m {said}", f"The number of places {said}.")
        if not is_whole(settings["a"]) or abs(settings["a"]) > 10**6:
            said = f"is a whole number, at most a million either way, not {settings['a']!r}"
            raise NotAccepted(f"{call}: a {said}", f"What is added {said}.")
        if not is_whole(settings["step"]) or not 0 <= settings["step"] <= settings["m"]:
            raise ValueError(f"{call}: step is a whole number, 0 to {settings['m']}, not {settings['step']!r}")
        if not is_whole(settings["of"]) or settings["of"] < 1:
            raise ValueError(f"{call}: of is the number of a step, from 1 up, not {settings['of']!r}")
        guesses = {name: _guess(call, name, settings[name]) for name in ("residue", "period")}
        return settings | guesses | {name: int(settings[name]) for name in ("m", "a", "step", "of")}

    def set(self, **settings):
        """Change settings, as the controls do; another m or a begins anew, without predictions. Returns the view."""
        old = self._settings
        if any(settings.get(name, old[name]) != old[name] for name in ("m", "a")):
            settings = {"step": 0, "residue": "", "period": ""} | settings
        if settings.get("residue", old["residue"]) != old["residue"]:
            settings = {"of": settings.get("step", old["step"]) + 1} | settings
        return super().set(**settings)

    @property
    def last(self):
        return self._settings["m"]

    # What follows from m and a

    @property
    def period(self):
        """How many steps lead back to 0: m / gcd(a, m)."""
        return self._settings["m"] // math.gcd(self._settings["a"], self._settings["m"])

    @property
    def orbit(self):
        """The residues from 0 up to the state that is shown: a list of ints, of length step + 1."""
        now = self._settings
        return [k * now["a"] % now["m"] for k in range(now["step"] + 1)]

    @property
    def arrived(self):
        """The ranks whose chunks are there, in the order in which they came: the orbit until it repeats itself."""
        return self.orbit[: self.period]

    @property
    def placed(self):
        """What the slots hold where a chunk goes to the slot of its rank: a list of ranks, or None."""
        there = set(self.arrived)
        return [rank if rank in there else None for rank in range(self._settings["m"])]

    @property
    def appended(self):
        """What the slots hold where a chunk is put behind those that came before: likewise."""
        return self.arrived + [None] * (self._settings["m"] - len(self.arrived))

    # In words

    def caption(self):
        now = self._settings
        x, a, m = self.orbit[-1], now["a"], now["m"]
        if not now["step"]:
            return f"x -> (x {plus(a)}) mod {m}. State 0: x = 0, and rank 0 holds its own chunk only."
        before = self.orbit[-2]
        found = f" Back at 0: the period is {self.period}." if now["step"] == self.period else ""
        return f"Step {now['step']}: ({before} {plus(a)}) mod {m} = {x}.{found}"

    def said_of_predictions(self):
        """What has become of the predictions: a list of sentences."""
        now, said = self._settings, []
        if now["residue"]:
            said.append(self._of_residue(int(now["residue"])))
        if now["period"]:
            said.append(self._of_period(int(now["period"])))
        return said

    def _of_residue(self, guess):
        now = self._settings
        a, m, of = now["a"], now["m"], now["of"]
        if now["step"] < of:
            return f"You predict residue {guess} after step {of}. Make the step."
        before, x = (of - 1) * a % m, of * a % m
        if guess == x:
            return f"You predicted residue {guess} after step {of}: right."
        why = f"{before} {plus(a)} is {before + a}"
        if x != before + a:
            why += f", and mod {m} takes the multiples of {m} off"
        if not 0 <= guess < m:
            why = f"mod {m} leaves 0 to {m - 1}" if m > 1 else "mod 1 leaves 0"
        if guess == before + a:
            why = f"that is {before} {plus(a)}; mod {m} is still to be taken"
        elif guess == before:
            why = f"that is where the step began; it adds {a}"
        return f"You predicted residue {guess} after step {of}: it is {x}; {why}."

    def _of_period(self, guess):
        now, common = self._settings, math.gcd(self._settings["a"], self._settings["m"])
        if now["step"] < self.period:
            return f"You predict period {guess}. It is found when x is back at 0."
        if guess == self.period:
            return f"You predicted period {guess}: right."
        why = f"x was back at 0 after {self.period} steps"
        if guess == now["m"]:
            why = f"a and m have the divisor {common} in common, so one place in {common} is visited"
        elif guess == now["a"]:
            why = "that is what each step adds"
        return f"You predicted period {guess}: it is {self.period}; {why}."

    def verdict(self):
        """Which of the two results is right by now, and why: a list of two sentences."""
        m, there = self._settings["m"], len(self.arrived)
        missing = m - there
        lacks, wrong = f", {missing} missing" * bool(missing), self.wrong
        never = missing and self._settings["step"] >= self.period
        why = f"{lacks}; {self._never()}" if never else f", each in its own slot{lacks}"
        placed = f"Placed by rank: {there} of {m} chunks{why}."
        if wrong:
            slot = wrong[0]
            first = f"slot {slot} holds rank {self.appended[slot]}'s and should hold rank {slot}'s"
            return [placed, f"Appended: {len(wrong)} of {there} chunks in a wrong slot; {first}."]
        lucky = " They came in rank order: luck, no rule." if m > 2 and there > 2 else ""
        return [placed, f"Appended: no chunk in a wrong slot so far{lacks}.{lucky}"]

    @property
    def wrong(self):
        """The slots that hold another rank's chunk where chunks are appended: a list."""
        return [slot for slot, rank in enumerate(self.arrived) if rank != slot]

    def _never(self):
        common = math.gcd(self._settings["a"], self._settings["m"])
        a, m = self._settings["a"], self._settings["m"]
        return f"gcd({a}, {m}) = {common}, so the orbit visits one rank in {common}"

    def text(self):
        now = self._settings
        found = now["step"] >= self.period
        rows = [["slot", *map(str, range(now["m"]))]]
        for name, slots in (("placed by rank", self.placed), ("appended", self.appended)):
            rows.append([name, *("-" if rank is None else f"{rank}" for rank in slots)])
        rows.append(["", *("x" if slot in self.wrong else "" for slot in range(now["m"]))])
        return "\n".join(
            [
                f"modular lab: x -> (x {plus(now['a'])}) mod {now['m']}, {number_of(now['m'], 'place')}",
                self.caption(),
                *self.said_of_predictions(),
                f"orbit so far: {', '.join(map(str, self.orbit))}",
                f"period: {self.period} = m / gcd(a, m)" if found else "period: not found yet, x is not back at 0",
                "",
                "an all-gather on as many ranks, seen on rank 0; chunks arrive in that order (x: wrong slot)",
                *filter(None, table(rows)),
                *self.verdict(),
                NOT,
                RULE,
            ]
        )

    # As a picture

    def _paint(self, drawing, static):
        ModularPicture(self, drawing).paint()

    # As a widget

    def _controls(self, widgets):
        now = self._settings
        inputs, rows = self._step_controls(widgets)
        narrow = {"layout": {"width": "130px"}, "style": {"description_width": "30px"}}
        late = {"continuous_update": False, "style": {"description_width": "initial"}}
        wide, less = ({"layout": {"width": width}} for width in ("290px", "150px"))
        chosen = {
            # not IntText, which would cut a fraction off before anybody could refuse it
            "m": widgets.FloatText(now["m"], description="m", step=1, **narrow),
            "a": widgets.FloatText(now["a"], description="a", step=1, **narrow),
        }
        predictions = {
            "residue": widgets.Text(now["residue"], description="residue after the next step", **late, **wide),
            "period": widgets.Text(now["period"], description="period", **late, **less),
        }
        row = {"layout": {"flex_flow": "row wrap"}}
        return inputs | chosen | predictions, [
            widgets.HBox(list(chosen.values()), **row), widgets.HBox(list(predictions.values()), **row), *rows,
        ]  # fmt: skip


def _guess(call, name, value):
    """A prediction as text: "" or a whole number."""
    text = str(value).strip()
    if not re.fullmatch("|-?[0-9]{1,9}", text):
        said = f"is a whole number of nine digits at most, or nothing, not {repr(value)}"
        raise NotAccepted(f"{call}: {name} {said}", f"A prediction {said}.")
    return text
