"""The few forms of PromQL that panels are made of, so that none of them is written in two ways.

Quantiles come from buckets that were added up first, means from a sum over a count; both over
`$__rate_interval`, which Grafana keeps wider than four scrapes.
"""

from __future__ import annotations

WINDOW = "$__rate_interval"


def select(metric: str, **labels: str) -> str:
    """A metric of the chosen instances. A label value that begins with `~` is a regular expression."""
    wanted = [
        f'{name}=~"{value[1:]}"' if value.startswith("~") else f'{name}="{value}"'
        for name, value in {"instance": "~$instance", **labels}.items()
    ]
    return f"{metric}{{{', '.join(wanted)}}}"


def rate(counter: str, by: str = "", over: str = WINDOW, **labels: str) -> str:
    """How much a counter gains each second, added up over all but the labels named in `by`."""
    return f"{_sum(by)} (rate({select(counter, **labels)}[{over}]))"


def gained(counter: str, by: str = "", over: str = WINDOW, **labels: str) -> str:
    """How much a counter gains in the window."""
    return f"{_sum(by)} (increase({select(counter, **labels)}[{over}]))"


def total(gauge: str, by: str = "", **labels: str) -> str:
    """A gauge, added up over all but the labels named in `by`."""
    return f"{_sum(by)} ({select(gauge, **labels)})"


def quantile(q: float, histogram: str, by: str = "", **labels: str) -> str:
    """A quantile of what was observed in the window, over all the instances together."""
    buckets = rate(f"{histogram}_bucket", by=f"le, {by}" if by else "le", **labels)
    return f"histogram_quantile({q}, {buckets})"


def mean(histogram: str, **labels: str) -> str:
    """The mean of what was observed in the window."""
    return f"{rate(f'{histogram}_sum', **labels)} / {rate(f'{histogram}_count', **labels)}"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"
