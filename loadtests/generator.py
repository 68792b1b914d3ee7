"""What one Locust process does with a plan: keeps its schedule, counts what is under way, writes samples."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import gevent
from gevent.event import AsyncResult
from geventhttpclient.client import HTTPClientPool
from locust.contrib.fasthttp import FastHttpSession
from locust.env import Environment

from loadtests.arrivals import poisson, share
from loadtests.chat import Chat
from loadtests.plan import Plan, Step
from loadtests.sample import Sample
from loadtests.witness import Witness
from loadtests.workloads import Turn, parse

TICK_S = 0.02
BROKEN = 3  # exit code
WITNESS_S = 1.0


class Generator:
    """One of `workers` processes that share a plan."""

    def __init__(self, environment: Environment, plan: Plan, key: str) -> None:
        self.plan = plan
        self.workers = 1
        self.worker = 0
        self.under_way = 0
        self.driven = False  # whether the schedule's arrivals have all been sent
        self._environment = environment
        self._chat = Chat(plan, key)
        self._workloads = {step.workload: parse(step.workload) for step in plan.steps}
        self._numbers: dict[int, int] = {}  # by step: how many requests of ours it has had
        self._sent = 0
        self._cut: set[int] = set()  # steps that would have gone on but for `max_requests`
        self._users = 0
        self._tasks: list[gevent.Greenlet[..., None]] = []
        self._replies: dict[int, dict[Turn, str]] = {}  # by step
        self._zero: AsyncResult[float] = AsyncResult()  # when it began, on this process's clock
        folder = Path(plan.folder)
        self._samples = (folder / f"samples-{os.getpid()}.jsonl").open("ab", buffering=0)
        self._witness = Witness(folder)

    def begin(self, unix_s: float, worker: int, workers: int) -> None:
        """Start the plan's clock at that instant, as `worker` of `workers`. A second time begins anew."""
        self.worker, self.workers, self.driven = worker, workers, False
        self._users = self._sent = 0
        self._numbers.clear()
        self._cut.clear()
        self._samples.truncate(0)
        # Whoever waits on this machine for a step does it by the clock that the steps run by: the one that
        # tells the date may be set meanwhile.
        self._witness.begin(time.monotonic() + unix_s - time.time())
        gc.collect()
        gc.freeze()  # what is loaded stays; searching it for garbage would stop every reader
        self.look_on(unix_s)
        gevent.killall(self._tasks)
        self._tasks = [gevent.spawn(self._drive), gevent.spawn(self._watch)]

    def new_user(self) -> int:
        """The number of the next user of this process."""
        self._users += 1
        return self._users - 1

    def look_on(self, unix_s: float) -> None:
        """Know when the plan begins, and send nothing."""
        self._zero.set(time.perf_counter() + unix_s - time.time())

    @property
    def pool(self) -> HTTPClientPool:
        """The connections of all its users."""
        return self._chat.pool

    def at_s(self) -> float:
        """Seconds since the beginning; waits until it is set."""
        return float(time.perf_counter() - self._zero.get())

    @property
    def begun(self) -> bool:
        """Whether the beginning is set."""
        return bool(self._zero.ready())

    @property
    def idle(self) -> bool:
        """Whether it has nothing more to do."""
        return self.driven and not self.under_way and self.at_s() >= self.plan.end_s

    def take_turn(self, user: int, session: FastHttpSession) -> None:
        """What this process's user number `user` does now: send a request and read it, or wait for a step."""
        step = self.plan.step_at(self.at_s())
        if step is None or self._of_all(user) >= step.users or self._full(step):
            gevent.sleep(TICK_S)
            return
        retry_after_s = self._send(step, self._next_number(step), self.at_s(), session)
        gevent.sleep(min(retry_after_s, max(0.0, step.end_s - self.at_s())))

    def wait_for_step(self, user: int, jitter: float) -> None:
        """Users of a step begin at different moments of its settling, or equal answers would end together."""
        now = self.at_s()
        wanted = (s for s in self.plan.steps if s.users > self._of_all(user) and s.end_s > now)
        if (step := next(wanted, None)) is not None:
            gevent.sleep(max(0.0, step.start_s - now) + jitter * step.settle_s)

    def _of_all(self, user: int) -> int:
        return user * self.workers + self.worker

    def _drive(self) -> None:
        """Send the arrivals of every open step, each at its own instant, whatever became of those before."""
        for step in (step for step in self.plan.steps if step.open):
            schedule = poisson(step.rate_per_s, step.length_s, f"{self.plan.seed}/{step.part}/{step.name}")
            for number, after_s in share(schedule, self.worker, self.workers):
                intended_s = step.start_s + after_s
                gevent.sleep(max(0.0, intended_s - self.at_s()))
                if self._full(step):
                    break
                self._count(step)
                sending = gevent.spawn(self._send, step, number, intended_s, self._session())
                sending.link_exception(self._give_up)
        self.driven = True

    def _give_up(self, broken: gevent.Greenlet[..., None]) -> None:
        """A request that was lost to a fault of ours would make the figures too good: better none at all."""
        self._environment.process_exit_code = BROKEN
        if self._environment.runner is not None:
            self._environment.runner.quit()

    def _session(self) -> FastHttpSession:
        """Cookies apart, connections in common."""
        fire = self._environment.events.request
        return FastHttpSession(self.plan.url, fire, None, insecure=False, client_pool=self._chat.pool)

    def _send(self, step: Step, number: int, intended_s: float, session: FastHttpSession) -> float:
        """Returns how long the server asks to be left alone, in seconds."""
        # Steps have the same numbers; what is cold has to be new to a server that saw the steps before.
        run, replies = f"{self.plan.run}/{step.number}", self._replies.setdefault(step.number, {})
        ask = self._workloads[step.workload].ask(number, self.plan.seed, run, replies)
        zero = self._zero.get() + intended_s
        sample = Sample(step.number, number, ask.kind, time.time() - time.perf_counter() + zero)
        sample.into_s = round(intended_s - step.start_s, 4)
        sample.streamed, sample.words, sample.asked_tokens = ask.streamed, ask.words, ask.max_tokens
        self.under_way += 1
        try:
            text = self._chat.send(session, sample, ask, step.name, zero)
        finally:
            self.under_way -= 1
        self._samples.write(sample.to_json())
        if ask.turn is not None and text:
            replies[ask.turn] = text
        return sample.retry_after_s or 0.0

    def _next_number(self, step: Step) -> int:
        return self._count(step) * self.workers + self.worker

    def _count(self, step: Step) -> int:
        number = self._numbers.get(step.number, 0)
        self._numbers[step.number] = number + 1
        self._sent += 1
        return number

    def _full(self, step: Step) -> bool:
        """Whether this process has sent its part of what may be sent."""
        if step.requests and self._numbers.get(step.number, 0) >= -(-step.requests // self.workers):
            return True
        if self._sent * self.workers < self.plan.max_requests:
            return False
        if step.number not in self._cut:
            self._cut.add(step.number)
            self._witness.cut(step.number)
        return True

    def _watch(self) -> None:
        """Note once a second how late this process was at most: then its figures are late as well."""
        while True:
            worst_s, until = 0.0, time.perf_counter() + WITNESS_S
            while time.perf_counter() < until:
                before = time.perf_counter()
                gevent.sleep(TICK_S)
                worst_s = max(worst_s, time.perf_counter() - before - TICK_S)
            self._witness.late(time.time(), worst_s * 1e3)
