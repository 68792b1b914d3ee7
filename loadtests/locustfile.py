"""What Locust loads: `python -m loadtests` writes a plan, and starts Locust with this file."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, ClassVar

from locust import FastHttpUser, LoadTestShape, events, task
from locust.env import Environment

from loadtests.conductor import Conductor
from loadtests.generator import Generator
from loadtests.live import show
from loadtests.plan import KEY_VARIABLE, VARIABLE, Plan

AHEAD_S = 3.0  # users are made so long before their step
USERS_PER_S = 50
GRACE_S = 2.0


class ChatUser(FastHttpUser):
    """A user of the closed loop; in an open step all of them only wait."""

    conductor: ClassVar[Conductor]

    def __init__(self, environment: Environment) -> None:
        self.client_pool = self.conductor.generator.pool  # one for all: a user's own has ten connections
        super().__init__(environment)
        self._number = self.conductor.generator.new_user()

    def on_start(self) -> None:
        """Wait for the first step that wants this user."""
        self.conductor.generator.wait_for_step(self._number, random.Random(self._number).random())

    @task
    def chat(self) -> None:
        """One request, or a short wait."""
        self.conductor.generator.take_turn(self._number, self.client)


class Steps(LoadTestShape):
    """The plan's users, each made a little before it is needed; over when everything is answered."""

    def tick(self) -> tuple[int, float] | None:
        """How many users there should be, and how many to make in a second."""
        conductor = ChatUser.conductor
        plan, workers = conductor.generator.plan, conductor.workers
        if not conductor.generator.begun:
            return workers, float(USERS_PER_S)
        late_s = conductor.generator.at_s() - plan.end_s
        if late_s >= 0 and (conductor.all_idle or late_s >= plan.patience_s + GRACE_S):
            return None
        each = max(1, -(-plan.users_by(late_s + plan.end_s + AHEAD_S) // workers))
        return each * workers, float(USERS_PER_S * workers)


def prepare(environment: Environment, **_: Any) -> None:
    """In every process, once Locust knows its part."""
    plan = Plan.read(Path(os.environ[VARIABLE]))
    generator = Generator(environment, plan, os.environ.get(KEY_VARIABLE, ""))
    ChatUser.host = environment.host = plan.url
    ChatUser.conductor = Conductor(environment, generator)
    if environment.web_ui is not None:
        show(environment.web_ui, plan)


events.init.add_listener(prepare)
