"""An exercise: a question, what is expected, and the wrong answers that have a name."""

import html
from dataclasses import dataclass

from collectlab.exercises import reading


@dataclass(frozen=True)
class Verdict:
    """What is said about an answer. True when the answer is right.

    mistake  the name of the mistake that was recognised; None when the answer is right, or wrong in another way;
             "unanswered" where the three dots still stand
    text     the sentence for the learner
    """

    right: bool
    text: str
    mistake: str | None = None

    def __bool__(self):
        return self.right

    def __repr__(self):
        return self.text

    def _repr_html_(self):
        line = "solid" if self.right else "dotted" if self.mistake == "unanswered" else "dashed"
        label, colon, rest = map(html.escape, self.text.partition(":"))
        return (
            f'<div style="border-left: 3px {line}; padding: 2px 0 2px 10px; white-space: pre-wrap">'
            f"<b>{label}</b>{colon}{rest}</div>"
        )


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give, and what they are told.

    wrong    the answer itself, computed as the mistake computes it; or a rule, value -> bool
    message  the sentence
    """

    name: str
    wrong: object
    message: str

    def is_made_in(self, value):
        """Whether a value is this mistake."""
        return bool(self.wrong(value)) if callable(self.wrong) else reading.same(value, self.wrong)


def takes(letter, message, does_not="hold"):
    """The Mistake of naming a statement that does not hold (or follow) among those that do."""
    said = f"{letter} does not {does_not}. {message}"
    return Mistake(f"takes {letter}", lambda letters: letter in letters, said)


def lacks(letter, hint, said="There is another one that holds"):
    """The Mistake of leaving out a statement that holds."""
    return Mistake(f"lacks {letter}", lambda letters: letter not in letters, f"{said}: {hint}")


def chooses(place, name, message):
    """The Mistake of a list of names that has this one at that place, counted from 1."""
    return Mistake(f"{name} for need {place}", lambda names: names[place - 1 : place] == (name,), message)


@dataclass(frozen=True)
class Exercise:
    """A question with one right answer. Call it with an answer: it returns a Verdict, and never raises.

    question  for the learner, who has it in the notebook too
    expected  computed, not typed in; its type decides what answers are read (see reading.py)
    why       one sentence that says why the right answer is right
    mistakes  in the order in which they are tried, at least five
    options   the names, or letter -> statement, that an answer chooses from
    of        what a number counts, for example "elements"; of names, where they are listed, if they are many
    length_is_asked  the length of the list is part of the question, and not said before a right answer
    is_slice         the answer is [start, stop]; slice(2, 4), range(2, 4) and "2:4" are read as that
    are_joined       lists in the answer are read as one: [[1, 2], [3, 4]] as [1, 2, 3, 4]
    """

    question: str
    expected: object
    why: str
    mistakes: tuple
    options: tuple | dict = ()
    of: str = ""
    length_is_asked: bool = False
    is_slice: bool = False
    are_joined: bool = False

    def __call__(self, answer):
        kind = self._kind()
        try:
            if reading.unanswered(answer):
                return Verdict(False, f"no answer yet: put {kind} in the place of the three dots.", "unanswered")
            cited = reading.shown(answer)
            written = reading.start_stop(answer) if self.is_slice else answer
            value = reading.read(written, self.expected, self.options)
            value = value.ravel() if self.are_joined else value
        except reading.NotAnAnswer as error:
            return Verdict(False, f"not yet: you answered {cited}. There, {error}. What is expected: {kind}.", "kind")
        except Exception:  # an object whose own methods raise, when it is shown or read
            return Verdict(False, f"not yet: the answer cannot be read. What is expected: {kind}.", "kind")
        if reading.same(value, self.expected):
            return Verdict(True, f"right: {self.why}")
        said = f"not yet: you answered {cited}."
        for mistake in self.mistakes:
            if mistake.is_made_in(value):
                return Verdict(False, f"{said} {mistake.message}", mistake.name)
        where = reading.difference(value, self.expected, self.length_is_asked)
        return Verdict(False, f"{said} Look again: {where}. What is expected: {kind}.")

    def __repr__(self):
        return f"{self.question} Answer with {self._kind()}."

    def _kind(self):
        if self.is_slice:
            return "a slice [start, stop]"
        return reading.expected_kind(self.expected, self.options, self.of, self.length_is_asked)
