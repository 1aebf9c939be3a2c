"""From what a learner wrote to a value that can be compared, or a sentence that says why it cannot be.

What is expected decides how an answer is read:

    a number, or an array     numbers, alone or in lists; an array with one row per rank for "one list per rank"
    a str                     one of the exercise's options; ["x", "y"], "x + y" and "x, y" are "x then y"
    a tuple of str            a list of the exercise's options; "x, y" is a list as well
    a frozenset of str        letters of the exercise's options, such as "a c" or "a and c"
"""

import numbers
import re

import numpy as np

_MOST = 90  # characters, or elements, of an answer that is cited


class NotAnAnswer(Exception):
    """The answer cannot be compared; the text says why."""


def expected_kind(expected, options=(), of="", length_is_asked=False):
    """What a learner should write, in words; without the length of the list where that is asked for."""
    if isinstance(expected, frozenset):
        return f"the letters of all that hold, such as {' '.join(list(options)[:2])!r}, out of {_list(options)}"
    if isinstance(expected, str):
        return f"one of {of or _list(map(repr, options))}"
    if isinstance(expected, tuple):
        return f"a list of {len(expected)} names, each one of {_list(map(repr, options))}"
    array = np.asarray(expected)
    noun = ("whole number" if array.dtype.kind in "iu" else "number") + ("{}" + f" ({of})" * bool(of))
    if array.ndim == 0:
        return "a " + noun.format("")
    if array.ndim == 1:
        return "a list of " + f"{array.size} " * (not length_is_asked) + noun.format("s")
    return f"a list with one list per rank, {array.shape[0]} of them, each of {array.shape[1]} {noun.format('s')}"


def read(answer, expected, options=()):
    """The answer as a value of the kind of `expected`; NotAnAnswer when it is none."""
    if answer is None:
        is_named = isinstance(expected, str) and "none" in options
        raise NotAnAnswer("None is no answer" + "; the name is 'none', in quotation marks" * is_named)
    if isinstance(answer, np.ndarray) and answer.dtype.kind == "U":
        answer = answer.tolist()
    if isinstance(expected, frozenset):
        return _letters(answer, options)
    if isinstance(expected, str):
        return _option(_one_after_another(answer), options)
    if isinstance(expected, tuple):
        if isinstance(answer, str) and "," in answer:
            answer = answer.split(",")
        if not isinstance(answer, list | tuple):
            raise NotAnAnswer(f"that is {_a(answer)}, not a list of names")
        return tuple(_option(one, options) for one in answer)
    return _numbers(answer)


def start_stop(answer):
    """[start, stop] of what spells a slice in another way; any other answer as it is."""
    if isinstance(answer, str) and (spelled := re.fullmatch(r"(?:\w*\[)?\s*(\d*)\s*:\s*(\d+)\s*\]?", answer.strip())):
        return [int(spelled[1] or 0), int(spelled[2])]
    if not isinstance(answer, slice | range):
        return answer
    if answer.step not in (None, 1):
        raise NotAnAnswer(f"a step of {shown(answer.step)} leaves elements out; a slice here is contiguous")
    return [answer.start or 0, answer.stop]


def same(value, expected):
    """Whether a value that was read is the expected one."""
    if isinstance(expected, str | tuple | frozenset):
        return value == expected
    return np.shape(value) == np.shape(expected) and bool(np.all(value == np.asarray(expected)))


def difference(value, expected, length_is_asked=False):
    """Where a wrong value differs from the expected one, without giving that away."""
    if isinstance(expected, frozenset):
        extra, missing = sorted(value - expected), sorted(expected - value)
        said = f"{_list(extra)} should not be there" if extra else "", f"{len(missing)} more should" * bool(missing)
        return " and ".join(filter(None, said))
    if isinstance(expected, str):
        return f"{value!r} is not the one"
    if isinstance(expected, tuple):
        if len(value) != len(expected):
            return f"that is a list of {len(value)}"
        return f"name {_first(v != e for v, e in zip(value, expected, strict=True)) + 1} of the list is not right"
    expected = np.asarray(expected)
    if value.shape != expected.shape:
        wrong = "; the length is not right" if length_is_asked and value.ndim == expected.ndim else ""
        return f"that is {_shape(value)}{wrong}"
    at = np.unravel_index(_first((value != expected).flat), value.shape)
    how = "large" if value[at] > expected[at] else "small"
    where = {
        0: "it is",
        1: "position {} (counted from 0) differs first: {} is",
        2: "the list of rank {} differs first at its position {} (counted from 0): {} is",
    }[value.ndim]
    return where.format(*map(int, at), shown(value[at])) + f" too {how}"


def shown(answer):
    """The answer as it is cited in a sentence: short, and the same in every session."""
    if isinstance(answer, set | frozenset):
        if not all(isinstance(one, str) for one in answer):
            return _a(answer)
        answer = " ".join(sorted(answer))
        if not answer:
            return "an empty set"
    elif isinstance(answer, list | tuple):
        plain = map(_plain, answer[:_MOST])
        answer = list(plain) if isinstance(answer, list) else tuple(plain)
    else:
        answer = _plain(answer)
    if not (isinstance(answer, str | numbers.Number | list | tuple | dict | range | slice) or answer is None):
        return _a(answer)
    try:
        text = " ".join(repr(answer).split())
    except Exception:  # of an object inside that cannot be shown
        return _a(answer)
    if " at 0x" in text:  # an object that is shown by its address, another one each time
        return _a(answer)
    return text if len(text) <= _MOST else text[: _MOST - 4] + " ..."


def unanswered(answer, depth=2):
    """Whether the placeholder is still there, at least at one place."""
    if depth and isinstance(answer, list | tuple):
        return any(unanswered(one, depth - 1) for one in answer)
    return answer is ...


def _plain(answer):
    return answer.tolist() if isinstance(answer, np.ndarray | np.generic) and answer.size <= _MOST else answer


def _numbers(answer):
    if isinstance(answer, np.ma.MaskedArray):
        raise NotAnAnswer("that is a masked array")
    if isinstance(answer, str | bytes):
        raise NotAnAnswer("that is text; write numbers without quotation marks")
    if isinstance(answer, slice):
        raise NotAnAnswer("that is a slice, not the numbers in it")
    if isinstance(answer, dict | set | frozenset):
        raise NotAnAnswer(f"that is {_a(answer)}; use a list, which has an order")
    if callable(answer):
        raise NotAnAnswer("that is a function, not what it returns")
    if isinstance(answer, list | tuple) and any(one is None for one in answer):
        raise NotAnAnswer("a None stands in the list")
    try:
        array = np.asarray(answer)
    except ValueError:
        raise NotAnAnswer("the inner lists differ in length") from None
    if array.dtype.kind == "b":
        raise NotAnAnswer("that is true or false, not a number")
    if array.dtype.kind in "US":
        raise NotAnAnswer("text stands in the list; write numbers without quotation marks")
    if array.dtype.kind == "c":
        raise NotAnAnswer("that is complex")
    if array.dtype.kind not in "iuf":
        raise NotAnAnswer(f"that is {_a(answer)}, and not numbers that NumPy can hold")
    if array.ndim > 2:
        raise NotAnAnswer("the lists are nested too deeply")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NotAnAnswer("a NaN or an infinity is in it")
    return array


def _option(answer, options):
    if not isinstance(answer, str):
        raise NotAnAnswer(f"that is {_a(answer)}; write a name in quotation marks")
    for option in options:
        if _bare(option) == _bare(answer):
            return option
        if _bare(option) == _bare(_THEN.sub(" then ", answer)):
            return option
    raise NotAnAnswer(f"{shown(answer)} is not one of the names")


_THEN = re.compile(r"(?:,|\+|&|->|\band\b)(?:\s*then\b)?")


def _one_after_another(answer):
    """A list of names as one name: ["x", "y"] is "x then y"; any other answer as it is."""
    if isinstance(answer, list | tuple) and answer and all(isinstance(one, str) for one in answer):
        return " then ".join(answer)
    return answer


def _letters(answer, options):
    if isinstance(answer, str):
        answer = [answer]
    if not isinstance(answer, list | tuple | set | frozenset) or not all(isinstance(one, str) for one in answer):
        raise NotAnAnswer(f"that is {_a(answer)}; write letters in quotation marks")
    letters = frozenset().union(*(_letters_of(text, options) for text in answer))
    if not letters:
        raise NotAnAnswer("no letter is named, and at least one statement holds")
    if unknown := sorted(letters - set(options)):
        raise NotAnAnswer(f"there is no {shown(unknown[0])} to choose")
    return letters


def _letters_of(text, options):
    """The letters that a text names: "ad" is a and d, and so is "a and d"."""
    if set(_bare(text)) <= set(options):
        return set(_bare(text))
    found = set(re.findall(r"\b\w\b", text.lower()))
    if not found:
        raise NotAnAnswer(f"{shown(text)} is not made of letters to choose, and at least one statement holds")
    return found


def _bare(text):
    return "".join(c for c in text.lower() if c.isalnum())


def _shape(array):
    if array.ndim == 0:
        return "one number"
    if array.ndim == 1:
        return f"a list of {array.size} number{'s' * (array.size != 1)}"
    return f"a list of {array.shape[0]} list{'s' * (array.shape[0] != 1)} of {array.shape[1]}"


def _first(differs):
    return next(i for i, one in enumerate(differs) if one)


def _a(answer):
    name = {"ndarray": "array"}.get(type(answer).__name__, type(answer).__name__)
    return "None" if answer is None else f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _list(names):
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
