"""How fast this server is, learned from its own answers, and what follows for the next one.

A request reads its prompt, which takes a time that grows with the tokens to be read (its own, and
those of requests just before it) and with the answers being written meanwhile. Then it writes one
token a step; steps are the slower the more answers are written. How long answers are is known from
those that have ended. What has not been seen yet is unknown, and nothing is made up for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.admission.clock import Clock
from service.admission.horizon import Horizon
from service.admission.recent import Recent
from service.admission.trend import Trend

MARK_STEPS = 8  # a stream tells its pace each time it has made so many steps
LEAST_STEPS = 4  # fewer say little about the pace
LENGTHS = 128  # answers
MISSES = 64  # predictions
CAUTION = 0.75  # this share of predictions is to come out no later than told


@dataclass(frozen=True, slots=True)
class Load:
    """One request as it weighs on the engine, in tokens."""

    prompt_tokens: int
    output_tokens: int  # of one answer, at most
    n: int = 1
    cached_tokens: int | None = None  # of the prompt; None: nobody knows


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected for one request, from its arrival, in seconds; None is unknown."""

    queue_s: float | None
    prefill_s: float | None
    idle_prefill_s: float | None  # on an engine with nothing else to do
    decode_s: float | None
    margin_s: float = 0.0  # what waits have lately come out longer than predicted

    @property
    def first_token_s(self) -> float | None:
        """From arrival to the first token."""
        return _sum(self.queue_s, self.prefill_s)

    @property
    def total_s(self) -> float | None:
        """From arrival to the last token of an answer of usual length."""
        return _sum(self.first_token_s, self.decode_s)

    @property
    def for_others_s(self) -> float | None:
        """What of the first token's time is due to other requests."""
        if self.queue_s is None or self.prefill_s is None or self.idle_prefill_s is None:
            return self.queue_s
        return self.queue_s + max(0.0, self.prefill_s - self.idle_prefill_s)


class Rates:
    """What is known so far. Everything happens on the event loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.running = 0  # answers, n of a request counted as n
        self.to_read = 0.0  # prompt tokens of requests that have no token yet
        self.company = 0.0  # running answers, integrated over time
        self.horizon = Horizon()
        self.lengths = Recent(LENGTHS)  # of answers, in tokens
        self.wait_misses = Recent(MISSES)  # seconds by which waits came out longer than predicted
        self.first_token_misses = Recent(MISSES)
        self.prefill = Trend()  # seconds, of tokens to be read and running answers
        self.pace = Trend()  # seconds per step, of running answers
        self.cached_share = Trend()  # of prompts
        self.filled_share = Trend()  # how much of prompt and reserved output was used in the end
        self._ticked_s = clock.now()
        self._begun = 0

    def begin(self, load: Load, prediction: Prediction | None = None) -> Run:
        """A request goes to the engine now."""
        self.tick()
        self._begun += 1
        return Run(self, self._begun, load, prediction)

    def tick(self) -> float:
        """Let time pass up to now, which is returned; before anything about the running answers changes."""
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

    def steps(self, load: Load) -> float:
        """How long the request will take, in steps; as long as it may, while no length is known."""
        reading = 0.0
        if self.prefill.known and self.pace.known:
            running = max(1, self.running)
            reading = self.prefill.at(self.uncached(load), running) / self.pace.at(running)
        return reading + self.lengths.rest(0, load.output_tokens)

    def predict(self, load: Load, releases: int) -> Prediction:
        """What to expect of a request that can begin once so many running ones have ended."""
        self.tick()
        own = self.uncached(load)
        read = decode = idle = None
        beside = self.running if releases else self.running + load.n
        if self.prefill.known:
            idle = self.prefill.at(own, 1)
            read = self.prefill.at(own + self.to_read, beside)
        if self.pace.known:
            decode = (self.lengths.rest(0, load.output_tokens) - 1) * self.pace.at(beside)
        wait = self.wait_s(releases)
        return Prediction(wait, read, idle, decode, self._margin_s(wait))

    def wait_s(self, releases: int) -> float | None:
        """How long until so many running requests have ended."""
        if releases == 0 or not self.horizon:
            return 0.0
        if not self.pace.known:
            return None
        return self.horizon.until_release(releases) * self.pace.at(self.running)

    def waited(self, predicted_s: float | None, actual_s: float) -> None:
        """A request that had to wait begins."""
        if predicted_s is not None:
            self.wait_misses.add(actual_s - predicted_s)

    def _margin_s(self, wait_s: float | None) -> float:
        """No more than half the wait: were it larger, nobody might wait, and it would stay for ever."""
        if not wait_s:
            return 0.0
        return max(0.0, min(self.wait_misses.quantile(CAUTION), wait_s / 2))


class Run:
    """One request in the engine, as far as it teaches something about speed."""

    def __init__(self, rates: Rates, number: int, load: Load, prediction: Prediction | None) -> None:
        self._rates = rates
        self._number = number
        self._load = load
        self._prediction = prediction
        self._steps = rates.steps(load)
        self._to_read = rates.uncached(load)
        self._read_before = rates.to_read
        self._beside = rates.running
        self._end = rates.horizon.enter(number, self._steps)
        self._tokens = 0
        self._next_mark = 0
        self._mark = (rates.clock.now(), rates.company, 0)
        rates.running += load.n
        rates.to_read += self._to_read

    def wrote(self, tokens: int, cached_tokens: int = 0) -> None:
        """The engine has made tokens. Called for each delta: it must stay this small."""
        self._tokens += tokens
        if self._tokens >= self._next_mark:
            self._at_mark(cached_tokens)

    def end(self, complete: bool) -> None:
        """The engine is done with it. `complete`: the answers are as long as the model made them."""
        now = self._rates.tick()
        rates, load = self._rates, self._load
        if self._next_mark:
            self._learn_pace(now)
        else:
            rates.to_read = max(0.0, rates.to_read - self._to_read)
        if complete:
            rates.lengths.add(self._tokens / load.n)
            reserved = load.prompt_tokens + load.n * load.output_tokens
            rates.filled_share.add((load.prompt_tokens + self._tokens) / reserved, 0.0)
        rates.horizon.leave(self._number, self._end, self._steps)
        rates.running -= load.n

    def _at_mark(self, cached_tokens: int) -> None:
        now = self._rates.tick()
        if self._next_mark == 0:
            self._learn_prefill(now, cached_tokens)
        else:
            self._learn_pace(now)
        self._mark = (now, self._rates.company, self._tokens)
        steps = MARK_STEPS if self._next_mark else LEAST_STEPS
        self._next_mark = self._tokens + steps * self._load.n
        rest = self._rates.lengths.rest(self._tokens / self._load.n, self._load.output_tokens)
        self._end = self._rates.horizon.move(self._number, self._end, rest)

    def _learn_prefill(self, now: float, cached_tokens: int) -> None:
        rates, load = self._rates, self._load
        seconds = now - self._mark[0]
        read = max(1.0, load.prompt_tokens - cached_tokens)
        rates.prefill.add(seconds, self._read_before + read, self._beside + load.n)
        rates.cached_share.add(cached_tokens / max(1, load.prompt_tokens), 0.0)
        rates.to_read = max(0.0, rates.to_read - self._to_read)
        prediction = self._prediction
        if prediction is not None and prediction.prefill_s is not None:
            rates.first_token_misses.add(seconds - prediction.prefill_s)

    def _learn_pace(self, now: float) -> None:
        since, company, tokens = self._mark
        steps = (self._tokens - tokens) / self._load.n
        seconds = now - since
        if steps < LEAST_STEPS or seconds <= 0:
            return
        beside = (self._rates.company - company) / seconds
        self._rates.pace.add(seconds / steps, beside, weight=steps / MARK_STEPS)


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second
