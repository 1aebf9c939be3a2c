"""Completion in `%%ranks` cells: the names are those of the ranks, and the options those of the magic."""

import re

from IPython.core.completer import SimpleCompletion, context_matcher

from collectlab.launcher import sites

_OPTIONS = ("-n", "--ranks", "--timeout", "--device", "--site")
_NAME = re.compile(r"(?:^|[^\w.])((?:\w+\.)*)(\w*)$")  # dotted names up to the cursor, and nothing before their first


def register(shell, magics):
    """Let `shell` complete what is typed in cells of `magics`, a RanksMagics; those of an earlier one no more."""

    @context_matcher(identifier="collectlab.ranks")
    def ranks(context):
        found, start = offered(magics, context.full_text, context.cursor_line, context.cursor_position)
        kind = "option" if context.line_with_cursor.lstrip().startswith("%") else "instance"  # shown beside the name
        completions = [SimpleCompletion(name, type=kind) for name in found]
        return {"completions": completions, "matched_fragment": start, "suppress": True}

    ranks.collectlab = True
    others = [m for m in shell.Completer.custom_matchers if not getattr(m, "collectlab", False)]
    shell.Completer.custom_matchers[:] = [*others, ranks]


def offered(magics, text, line, column):
    """(completions, what they complete) at that place of a cell; ([], "") where the ranks have nothing to say."""
    lines = text.split("\n")
    first = next((n for n, words in enumerate(lines) if words.strip()), 0)
    before = lines[line][:column]
    magic = re.match(r"\s*(%%?)ranks\b", lines[first])
    if not magic or line < first:
        return [], ""
    if line == first:
        return _options(before, magic[1])
    if re.match(r"\s*(from|import)\b", before):
        return [], ""  # modules are here what they are there
    name = _NAME.search(before)
    if not name or not (name[1] or name[2]):
        return [], ""
    return magics.offered(name[1].rstrip("."), name[2]), name[2]


def _options(before, sign):
    """What may follow on the line of the magic itself."""
    *words, start = before.split(" ")
    if not words:
        return [], ""
    if sign == "%":
        known = ["stop"]
    else:
        known = {"--site": sites.names(), "--device": ("auto", "cpu", "cuda")}.get(words[-1], _OPTIONS)
    return [word for word in known if word.startswith(start)], start
