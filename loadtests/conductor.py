"""Begins a plan in every process at one instant, and knows when all of them are done with it."""

from __future__ import annotations

import time
from typing import Any

import gevent
from locust.env import Environment
from locust.rpc.protocol import Message
from locust.runners import LocalRunner, MasterRunner, Runner, WorkerRunner

from loadtests.generator import Generator

LEAD_S = 1.0  # from the decision to the beginning, so that every process has heard of it by then
POLL_S = 0.1
BEGIN, IDLE = "loadtest-begin", "loadtest-idle"


class Conductor:
    """Of one process: the only one, the one that leads, or one of those that are led."""

    def __init__(self, environment: Environment, generator: Generator) -> None:
        self.generator = generator
        self.workers = 1
        assert environment.runner is not None
        self._runner: Runner = environment.runner
        self._idle = 0
        if isinstance(self._runner, WorkerRunner):
            self._runner.register_message(BEGIN, self._told)
            return
        if isinstance(self._runner, MasterRunner):
            self._runner.register_message(IDLE, self._one_more_idle)
        environment.events.test_start.add_listener(self._lead)

    @property
    def all_idle(self) -> bool:
        """Whether every process has sent and read everything; asked of the one that leads."""
        if isinstance(self._runner, LocalRunner):
            return self.generator.idle
        return self._idle >= self.workers

    def _lead(self, **_: Any) -> None:
        """Locust says that a test begins; each time it is the whole plan."""
        beginning = time.time() + LEAD_S
        self._idle = 0
        if not isinstance(self._runner, MasterRunner):
            self.generator.begin(beginning, 0, 1)
            return
        followers = list(self._runner.clients)
        self.workers = len(followers)
        for number, client in enumerate(followers):
            told = {"unix_s": beginning, "worker": number, "workers": self.workers}
            self._runner.send_message(BEGIN, told, client)
        self.generator.look_on(beginning)

    def _told(self, msg: Message, **_: Any) -> None:
        self.generator.begin(**msg.data)
        gevent.spawn(self._tell_when_idle)

    def _tell_when_idle(self) -> None:
        while not self.generator.idle:
            gevent.sleep(POLL_S)
        self._runner.send_message(IDLE)

    def _one_more_idle(self, **_: Any) -> None:
        self._idle += 1
