"""One request in the engine, as far as it teaches something about speed."""

from __future__ import annotations

from service.admission.load import Load, Prediction
from service.admission.rates import Rates

LEAST_STEPS = 4  # after so many a stream tells its pace for the first time; fewer say little
SURE_STEPS = 8  # a pace over fewer is a weaker sample
MOST_STEPS = 32  # it tells again each time it has doubled, or has made so many more


class Run:
    """From its slot to its end. It counts among the running from the moment it is made."""

    def __init__(
        self, number: int, load: Load, rates: Rates, prediction: Prediction, arrived_s: float
    ) -> None:
        now = rates.tick()
        self._number = number
        self._load = load
        self._rates = rates
        self._prediction = prediction
        self._arrived_s = arrived_s
        self._steps = rates.steps(load)
        self._end = rates.horizon.enter(number, self._steps)
        self._to_read = rates.reading(load)
        self._read_before = rates.to_read
        self._tokens = 0
        self._next_mark = 0.0  # tokens
        self._marked_s, self._marked_company, self._marked_tokens = now, rates.company, 0
        rates.running += load.n
        rates.to_read += self._to_read
        self._beside = rates.running

    def wrote(self, tokens: int, cached_tokens: int = 0) -> None:
        """The engine has made tokens. Called for each delta: it must stay this small."""
        self._tokens += tokens
        if self._tokens >= self._next_mark:
            self._at_mark(cached_tokens)

    def end(self, complete: bool) -> None:
        """The engine is done with it. `complete`: the answers are as long as the model made them."""
        rates, load = self._rates, self._load
        now = rates.tick()
        if self._next_mark:
            self._learn_pace(now)
        else:
            self._has_read()
        if complete:
            rates.lengths.add(self._tokens / load.n)
            rates.filled_share.add((load.prompt_tokens + self._tokens) / load.tokens, 0.0)
        rates.horizon.leave(self._number, self._end, self._steps)
        rates.running -= load.n

    def _at_mark(self, cached_tokens: int) -> None:
        rates, n = self._rates, self._load.n
        now = rates.tick()
        if self._next_mark:
            self._learn_pace(now)
        else:
            self._has_read()
            self._learn_prefill(now, cached_tokens)
        self._marked_s, self._marked_company, self._marked_tokens = now, rates.company, self._tokens
        made = self._tokens / n
        self._next_mark = self._tokens + n * min(MOST_STEPS, max(LEAST_STEPS, made))
        rest = rates.lengths.rest(made, self._load.output_tokens)
        self._end = rates.horizon.move(self._number, self._end, rest)

    def _has_read(self) -> None:
        self._rates.to_read = max(0.0, self._rates.to_read - self._to_read)

    def _learn_prefill(self, now: float, cached_tokens: int) -> None:
        rates, prompt = self._rates, self._load.prompt_tokens
        read = max(1, prompt - cached_tokens)
        seconds = now - self._marked_s
        rates.prefill.add(seconds, self._read_before, read, prompt - read, self._beside)
        rates.cached_share.add(cached_tokens / max(1, prompt), 0.0)
        self._learn_miss(now)

    def _learn_miss(self, now: float) -> None:
        """How wrong the prediction was, if it was about others: alone, nearly all are right."""
        first, idle = self._prediction.first_token_s, self._prediction.idle_prefill_s
        if first is not None and idle is not None and first > 2 * idle:
            self._rates.misses.add(now - self._arrived_s - first)

    def _learn_pace(self, now: float) -> None:
        steps = (self._tokens - self._marked_tokens) / self._load.n
        seconds = now - self._marked_s
        if steps >= LEAST_STEPS and seconds > 0:
            beside = (self._rates.company - self._marked_company) / seconds
            self._rates.pace.add(seconds / steps, beside, weight=min(1.0, steps / SURE_STEPS))
