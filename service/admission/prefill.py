"""How long prompts take to be read, learned from first tokens.

A token is read in a time of its own and looks back at all tokens before it, the cached ones as well:

    seconds  ≈  base + slope · work + slope' · running answers
    work     =  r + r · (c + r/2) / H         r tokens read behind c cached ones

H, the tokens to look back at that cost as much as reading one, depends on the model and the machine. A few
values are tried side by side, and the one that has been least wrong lately is believed.
"""

from __future__ import annotations

import math

from service.admission.trend import Trend

HORIZONS = (math.inf, 16_384.0, 8_192.0, 4_096.0, 2_048.0, 1_024.0, 512.0)  # tokens
MEMORY = 32  # samples
BETTER = 0.9  # times as wrong, and another horizon is believed
LEAST_WEIGHT = 0.02  # of a sample far longer than usual: how wrong one is for its size is what counts
MOST_WRONG = 1.0  # as a logarithm: one stall is no proof


class Prefill:
    """The relation. It is unknown before the first sample."""

    def __init__(self) -> None:
        self._trends = {horizon: Trend() for horizon in HORIZONS}
        self._wrong = dict.fromkeys(HORIZONS, 0.0)  # mean of the logarithms of what was said over what came
        self._horizon = math.inf
        self._samples = 0
        self._usual_s: float | None = None

    @property
    def known(self) -> bool:
        """Whether there has been a sample."""
        return self._samples > 0

    def work(self, read: float, cached: float) -> float:
        """So many tokens, read behind so many cached ones, in tokens that have nothing to look back at."""
        return _work(read, cached, self._horizon)

    def at(self, work: float, running: float) -> float:
        """Seconds for all the work before a first token, beside running answers."""
        return self._trends[self._horizon].at(work, running)

    def add(self, seconds: float, before: float, read: float, cached: float, running: float) -> None:
        """Learn from a first token; `before` is the work that others had there first."""
        weight = self._weight(self.at(before + self.work(read, cached), running)) if self.known else 1.0
        self._samples = min(MEMORY, self._samples + 1)
        for horizon, trend in self._trends.items():
            work = before + _work(read, cached, horizon)
            if trend.known and seconds > 0 and (said := trend.at(work, running)) > 0:
                wrong = min(MOST_WRONG, abs(math.log(said / seconds)))
                self._wrong[horizon] += (wrong - self._wrong[horizon]) / self._samples
            trend.add(seconds, work, running, weight)
        best = min(HORIZONS, key=self._wrong.__getitem__)
        if self._wrong[best] < BETTER * self._wrong[self._horizon]:
            self._horizon = best

    def _weight(self, said_s: float) -> float:
        """Long ones would decide alone what a short one takes, as a little of theirs is all of its time."""
        if said_s <= 0:
            return 1.0
        usual = self._usual_s or said_s
        self._usual_s = usual * (said_s / usual) ** (1 / 16)
        return min(1.0, max(LEAST_WEIGHT, (usual / said_s) ** 2))


def _work(read: float, cached: float, horizon: float) -> float:
    return read + read * (cached + read / 2) / horizon
