"""The rendered text as an unbroken row of runs, each of one origin."""

from __future__ import annotations

from typing import NamedTuple

from service.prompt.traced import LOOSE, Origin, spans_of


class Run(NamedTuple):
    """Characters `start` to `end` of the rendered text."""

    start: int
    end: int
    origin: Origin
    of_template: bool


def runs_of(text: str) -> list[Run]:
    """The runs of a rendered text, in order, without gaps, none of them empty.

    What the template writes belongs to the message whose loop pass wrote it. Outside every loop it belongs to
    the message whose content stands beside it (templates put a system message before their loop), or to none.
    """
    runs: list[Run] = []
    owner, region, at = LOOSE, 0, 0
    for start, end, origin in spans_of(text):
        if start > at:
            runs.append(Run(at, start, owner, True))
        if not origin.of_template:
            if end > start:
                runs.append(Run(start, end, origin, False))
            at = end
            continue
        at = start
        if origin != owner:
            if owner == LOOSE:
                _claim(runs, region)
            owner, region = origin, len(runs)
    if len(text) > at:
        runs.append(Run(at, len(text), owner, True))
    if owner == LOOSE:
        _claim(runs, region)
    return runs


def end_of_message(text: str, index: int) -> int | None:
    """Where the content of a message ends in the rendered text; None if the template does not show it."""
    ends = [end for _, end, origin in spans_of(text) if origin == (index, "content")]
    return max(ends, default=None)


def _claim(runs: list[Run], region: int) -> None:
    """Give the template's runs from `region` on to the one message whose content is among them."""
    messages = {run.origin.message for run in runs[region:] if not run.of_template}
    if len(messages) == 1 and (message := messages.pop()) is not None:
        for at, run in enumerate(runs[region:], region):
            if run.of_template:
                runs[at] = run._replace(origin=Origin(message, "template"))
