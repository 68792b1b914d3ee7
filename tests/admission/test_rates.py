"""What the service learns from its own answers, and foresees."""

from __future__ import annotations

import pytest

from service.admission.load import Load, Prediction
from service.admission.rates import Rates
from service.admission.run import Run
from tests.admission.clock import HandClock

UNKNOWN = Prediction(0.0, None, None, None)


class Track:
    """Rates with a clock in the test's hand."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.rates = Rates(self.clock)
        self._number = 0

    def begin(self, load: Load, prediction: Prediction = UNKNOWN) -> Run:
        self._number += 1
        return Run(self._number, load, self.rates, prediction, self.clock.now())

    async def answers(self, count: int, load: Load, first_s: float, step_s: float, cached: int = 0) -> None:
        """So many answers side by side, from their beginning to their end."""
        runs = [self.begin(load) for _ in range(count)]
        await self.clock.go(first_s)
        for run in runs:
            run.wrote(load.n, cached)
        for _ in range(load.output_tokens - 1):
            await self.clock.go(step_s)
            for run in runs:
                run.wrote(load.n)
        for run in runs:
            run.end(complete=True)


async def test_nothing_is_foreseen_before_anything_has_been_seen() -> None:
    track = Track()
    prediction = track.rates.predict(Load(100, 100), releases=0)
    assert prediction.queue_s == 0
    assert prediction.first_token_s is None
    assert prediction.total_s is None
    track.begin(Load(100, 100))
    assert track.rates.predict(Load(100, 100), releases=1).queue_s is None


async def test_what_was_measured_is_foreseen() -> None:
    track = Track()
    await track.answers(1, Load(40, 32), first_s=0.2, step_s=0.05)
    prediction = track.rates.predict(Load(40, 32), releases=0)
    assert prediction.first_token_s == pytest.approx(0.2, rel=0.01)
    assert prediction.total_s == pytest.approx(0.2 + 31 * 0.05, rel=0.01)


async def test_a_first_token_teaches_before_its_answer_has_ended() -> None:
    track = Track()
    run = track.begin(Load(40, 1000))
    await track.clock.go(0.3)
    run.wrote(1)
    assert track.rates.predict(Load(40, 10), releases=0).first_token_s == pytest.approx(0.3)
    assert track.rates.predict(Load(40, 10), releases=1).queue_s is None
    for _ in range(4):
        await track.clock.go(0.1)
        run.wrote(1)
    assert track.rates.predict(Load(40, 10), releases=1).queue_s is not None


async def test_prefill_grows_with_the_tokens_to_be_read_and_not_with_cached_ones() -> None:
    track = Track()
    for prompt in (100, 2000, 500, 1000, 4000) * 4:
        await track.answers(1, Load(prompt, 5), first_s=0.05 + 0.001 * prompt, step_s=0.05)
    predict = track.rates.predict
    assert predict(Load(3000, 5, cached_tokens=0), 0).prefill_s == pytest.approx(3.05, rel=0.1)
    assert predict(Load(3000, 5, cached_tokens=2900), 0).prefill_s == pytest.approx(0.15, rel=0.5)


async def test_prompts_that_are_being_read_come_first() -> None:
    track = Track()
    for prompt in (100, 2000, 500, 1000, 4000) * 4:
        await track.answers(1, Load(prompt, 5), first_s=0.05 + 0.001 * prompt, step_s=0.05)
    track.begin(Load(3000, 5, cached_tokens=0))
    prediction = track.rates.predict(Load(1000, 5, cached_tokens=0), 0)
    assert prediction.prefill_s == pytest.approx(4.05, rel=0.1)
    assert prediction.idle_prefill_s == pytest.approx(1.05, rel=0.15)
    assert prediction.for_others_s == pytest.approx(3, rel=0.15)


async def test_how_much_of_a_prompt_is_usually_cached_is_learned() -> None:
    track = Track()
    for _ in range(10):
        await track.answers(1, Load(1000, 5), first_s=0.1, step_s=0.05, cached=900)
    assert track.rates.uncached(Load(2000, 5)) == pytest.approx(200, rel=0.05)


async def test_steps_are_slower_the_more_answers_run() -> None:
    track = Track()
    for count in (1, 16, 4, 8) * 4:
        await track.answers(count, Load(40, 20), first_s=0.2, step_s=0.05 + 0.005 * count)
    assert track.rates.pace.at(1) == pytest.approx(0.055, rel=0.1)
    assert track.rates.pace.at(16) == pytest.approx(0.13, rel=0.1)


async def test_several_answers_of_one_request_run_side_by_side() -> None:
    track = Track()
    await track.answers(1, Load(40, 20, n=4), first_s=0.2, step_s=0.1)
    assert track.rates.pace.at(4) == pytest.approx(0.1, rel=0.05)
    assert track.rates.lengths.quantile(0.5) == 20


async def test_an_answer_handed_over_at_its_end_only_teaches_the_same_pace() -> None:
    track = Track()
    run = track.begin(Load(40, 33))
    await track.clock.go(0.2)
    run.wrote(1)
    await track.clock.go(3.2)
    run.wrote(32)
    run.end(complete=True)
    assert track.rates.pace.at(1) == pytest.approx(0.1, rel=0.01)


async def test_the_wait_for_a_place_is_what_the_running_answers_still_need() -> None:
    track = Track()
    for _ in range(3):
        await track.answers(4, Load(40, 32), first_s=0.1, step_s=0.1)
    first = track.begin(Load(40, 32))
    await track.clock.go(1.0)
    runs = [track.begin(Load(40, 32)) for _ in range(3)]
    assert track.rates.predict(Load(40, 32), 1).queue_s == pytest.approx(2.2, rel=0.15)
    assert track.rates.predict(Load(40, 32), 2).queue_s == pytest.approx(3.2, rel=0.15)
    first.end(complete=True)
    for run in runs:
        run.end(complete=False)
    assert track.rates.predict(Load(40, 32), 1).queue_s == 0


async def test_an_answer_that_its_caller_left_says_nothing_about_lengths() -> None:
    track = Track()
    run = track.begin(Load(40, 500))
    await track.clock.go(0.1)
    run.wrote(3)
    run.end(complete=False)
    assert not len(track.rates.lengths)


async def test_what_a_stream_has_written_already_it_need_not_write_any_more() -> None:
    track = Track()
    for _ in range(3):
        await track.answers(1, Load(40, 32), first_s=0.2, step_s=0.1)
    quick = track.begin(Load(40, 32))
    await track.clock.go(0.1)
    quick.wrote(1)
    quick.wrote(27)
    assert track.rates.predict(Load(40, 32), 1).queue_s == pytest.approx(0.4, rel=0.05)
    slow = track.begin(Load(40, 32))
    await track.clock.go(3.0)
    slow.wrote(1)
    wait = track.rates.predict(Load(40, 32), 2).queue_s
    assert wait is not None and wait > 3


async def missed(track: Track, by_s: float) -> None:
    """Some first tokens that were predicted in 1.2 s, most of it for others, and came later."""
    await track.answers(1, Load(40, 32), first_s=0.2, step_s=0.1)
    for _ in range(10):
        run = track.begin(Load(40, 32), Prediction(1.0, 0.2, 0.2, 3.0))
        await track.clock.go(1.2 + by_s)
        run.wrote(1)
        run.end(complete=False)


async def prediction_beside_another(track: Track) -> Prediction:
    """For a request that has to wait for one that has just begun."""
    running = track.begin(Load(40, 32))
    await track.clock.go(0.2)
    running.wrote(1)
    return track.rates.predict(Load(40, 32), releases=1)


async def test_by_how_much_predictions_were_too_early_is_known_and_allowed_for() -> None:
    track = Track()
    await missed(track, by_s=0.3)
    assert track.rates.misses.quantile(0.5) == pytest.approx(0.3)
    assert (await prediction_beside_another(track)).margin_s == pytest.approx(0.3)


async def test_never_more_is_allowed_for_than_half_of_what_is_predicted() -> None:
    track = Track()
    await missed(track, by_s=60)
    prediction = await prediction_beside_another(track)
    assert prediction.for_others_s is not None
    assert prediction.margin_s == pytest.approx(prediction.for_others_s / 2)


async def test_predictions_for_an_idle_engine_say_nothing_about_misses() -> None:
    track = Track()
    await track.answers(1, Load(40, 32), first_s=0.2, step_s=0.1)
    run = track.begin(Load(40, 32), track.rates.predict(Load(40, 32), releases=0))
    await track.clock.go(0.9)
    run.wrote(1)
    run.end(complete=False)
    assert not len(track.rates.misses)
