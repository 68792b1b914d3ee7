"""How fast this server is, learned from its own answers, and what follows for the next one.

A request reads its prompt, which takes a time that grows with the tokens to be read (its own, and
those of requests just before it) and with the answers being written meanwhile. Then it writes one
token a step; steps are the slower the more answers are written. How long answers are is known from
those that have ended. What has not been seen yet is unknown, and nothing is made up for it.
"""

from __future__ import annotations

from dataclasses import replace

from service.admission.clock import Clock
from service.admission.horizon import Horizon
from service.admission.load import Load, Prediction
from service.admission.prefill import Prefill
from service.admission.recent import Recent
from service.admission.trend import Trend

LENGTHS = 128  # answers
MISSES = 64  # predictions
CAUTION = 0.75  # of predictions are to come out no later than told


class Rates:
    """What is known so far. Everything happens on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.running = 0  # answers, n of a request counted as n
        self.to_read = 0.0  # work of the prompts of requests that have no token yet
        self.company = 0.0  # running answers, integrated over time
        self.horizon = Horizon()
        self.prefill = Prefill()  # seconds, of prompts to be read and running answers
        self.pace = Trend()  # seconds a step, of running answers
        self.cached_share = Trend()  # of prompts
        self.filled_share = Trend()  # how much of prompt and reserved output was used in the end
        self.lengths = Recent(LENGTHS)  # of answers, in tokens
        self.misses = Recent(MISSES)  # seconds by which first tokens came later than predicted
        self._ticked_s = clock.now()

    def tick(self) -> float:
        """Let time pass up to now, which is returned: before anything about the running answers changes."""
        now = self.clock.now()
        passed, self._ticked_s = now - self._ticked_s, now
        if self.running:
            self.company += self.running * passed
            if self.pace.known:
                self.horizon.advance(passed / self.pace.at(self.running))
        return now

    def uncached(self, load: Load) -> float:
        """Prompt tokens to be read; of a prompt nobody knows anything about, as many as is usual here."""
        if load.cached_tokens is not None:
            return max(1.0, load.prompt_tokens - load.cached_tokens)
        share = self.cached_share.at(0.0) if self.cached_share.known else 0.0
        return max(1.0, load.prompt_tokens * (1 - share))

    def reading(self, load: Load) -> float:
        """The work of reading its prompt."""
        read = self.uncached(load)
        return self.prefill.work(read, load.prompt_tokens - read)

    def steps(self, load: Load) -> float:
        """How long the request will take, in steps; as long as it may, while no length is known."""
        reading = 0.0
        if self.prefill.known and self.pace.known:
            running = max(1, self.running)
            reading = self.prefill.at(self.reading(load), running) / self.pace.at(running)
        return reading + self.lengths.rest(0, load.output_tokens)

    def predict(self, load: Load, releases: int) -> Prediction:
        """What to expect of a request that can begin once so many running ones have ended."""
        self.tick()
        own = self.reading(load)
        beside = self.running if releases else self.running + load.n
        read = idle = decode = None
        if self.prefill.known:
            read = self.prefill.at(own + self.to_read, beside)
            idle = self.prefill.at(own, load.n)
        if self.pace.known:
            decode = (self.lengths.rest(0, load.output_tokens) - 1) * self.pace.at(beside)
        prediction = Prediction(self._wait_s(releases), read, idle, decode)
        return replace(prediction, margin_s=self._margin_s(prediction.for_others_s or 0.0))

    def _wait_s(self, releases: int) -> float | None:
        """How long until so many running requests have ended."""
        if releases == 0 or not self.horizon:
            return 0.0
        if not self.pace.known:
            return None
        return self.horizon.until_release(releases) * self.pace.at(self.running)

    def _margin_s(self, predicted_s: float) -> float:
        """No more than half of what is predicted: else nobody might wait, and it would stay for ever."""
        return max(0.0, min(self.misses.quantile(CAUTION), predicted_s / 2))
