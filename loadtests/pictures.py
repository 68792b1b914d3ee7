"""The pictures of a report: each with the question it answers, and a sentence that says how to read it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests import charts
from loadtests.charts import Facts

SIZE = (6.4, 3.4)
DPI = 90

Draw = Callable[[Axes, Facts], bool]


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart and the words under it."""

    name: str
    title: str
    says: str
    figure: Figure

    def svg(self) -> str:
        """For a page: text stays text."""
        out = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self.name}):
            self.figure.savefig(out, format="svg", metadata={"Date": None})
        return out.getvalue()[out.getvalue().index("<svg") :]

    def png(self, path: Path) -> None:
        """For a mail or a slide."""
        self.figure.suptitle(self.title, fontsize=10)
        self.figure.savefig(path, dpi=DPI)


def pictures(facts: Facts) -> Iterator[Picture]:
    """Every chart for which there is something to draw."""
    for name, title, says, draw in CHARTS:
        figure = Figure(SIZE, layout="constrained")
        axes = figure.subplots()
        if draw(axes, facts):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", alpha=0.3)
            if not axes.yaxis_inverted():
                axes.set_ylim(bottom=0)
            axes.set_axisbelow(True)
            yield Picture(name, title, says, figure)


CHARTS: Sequence[tuple[str, str, str, Draw]] = (
    (
        "goodput",
        "How much load is answered well?",
        "Up to the knee every request is. Beyond it a good service stays level, and a bad one falls.",
        charts.goodput,
    ),
    (
        "ttft-rate",
        "How long until the first token, as load grows?",
        "Requests arrive on their own, whether or not earlier ones are answered, as they do from real users.",
        charts.ttft_rate,
    ),
    (
        "ttft-concurrency",
        "How long until the first token, with so many users at a time?",
        "Each user waits for the answer before asking again, so that a slow service slows its own load.",
        charts.ttft_users,
    ),
    (
        "tpot-concurrency",
        "How long does each further token take?",
        "Decode reads all weights once for a whole batch, so that one more user costs the others little.",
        charts.tpot_users,
    ),
    (
        "throughput",
        "How many tokens come out, with so many users at a time?",
        "It grows until arithmetic or cache is full; one user's own stream gets no faster.",
        charts.throughput,
    ),
    (
        "ttft-length",
        "What does a longer prompt cost?",
        "Prefill reads the whole prompt before the first token, and grows a little faster than the prompt.",
        charts.lengths,
    ),
    (
        "phases",
        "Where does the time of an answer go?",
        "As the server tells. Queue wants capacity, prefill shorter prompts, decode shorter answers.",
        charts.phases,
    ),
    (
        "streaming",
        "What does streaming change?",
        "It moves the first content, not the last byte: the same work, delivered as it is done.",
        charts.streaming,
    ),
    (
        "both-sides",
        "Do client and server agree on the first token?",
        "Points above the line are time on the way: network, and the client's own work.",
        charts.both_sides,
    ),
    (
        "timeline",
        "What happened when?",
        "One point for each request, at the instant it was meant to be sent.",
        charts.timeline,
    ),
    (
        "send-lag",
        "Did the load generator keep its schedule?",
        "Requests sent late measure the generator. The dotted line is what is allowed at p99.",
        charts.lag,
    ),
    (
        "outcomes",
        "How did requests end?",
        "Refused is not failed: a refusal is quick and says when to come back.",
        charts.outcomes,
    ),
)
