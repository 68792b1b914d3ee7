"""The measurement: find the model, warm up, ask one request after the other, all within a time limit."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from service.probe.finding import Finding, find
from service.probe.stream import Answer, ask
from service.probe.target import Json, Rejected, Target, model_missing
from service.probe.trouble import Impatience, ProbeError

OWN_PROMPT = (
    "Explain to a curious reader how a lighthouse works: the lamp, the lens, the rhythm by which sailors "
    "tell one light from another, and what replaced the keepers."
)
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Wish:
    """What is to be measured."""

    url: str
    model: str | None = None
    key: str | None = field(default=None, repr=False)
    prompt: str = OWN_PROMPT
    tokens: int = 128
    requests: int = 3
    timeout_s: float = 120
    cached: bool = False  # send the very same prompt each time, so that a prefix cache may help


class Progress(Protocol):
    """Who is told how it goes."""

    def step(self, what: str) -> None:
        """Something new begins."""

    def piece(self) -> None:
        """A piece of text has come."""


def measure(wish: Wish, progress: Progress) -> Finding:
    """Probe a server. When time runs out, what was measured by then counts.

    Raises:
        ProbeError: nothing could be measured, and why.
    """
    until_s = time.monotonic() + wish.timeout_s
    target = Target(wish.url, wish.key)
    try:
        progress.step("asking what it serves")
        model, notes = _model(target, wish.model)
        body = _body(wish, model)
        progress.step("warming up")
        body = _warmed_up(target, body, until_s, progress)
        answers, cut = _answers(target, wish, body, until_s, progress)
        return find(target.url, model, answers, [*notes, *cut])
    finally:
        target.close()


def _model(target: Target, named: str | None) -> tuple[str, list[str]]:
    """The model to ask, and what is to be said about the choice."""
    if named is not None:
        return named, []
    served = target.models()
    if not served:
        raise ProbeError(f"{target.url} serves no model; name one with --model.")
    notes = [f"It serves {len(served)} models; this is the first. --model names another."]
    return served[0], notes if len(served) > 1 else []


def _body(wish: Wish, model: str) -> Json:
    return {
        "model": model,
        "messages": _messages(wish),
        "max_tokens": wish.tokens,
        "stream_options": {"include_usage": True},
    }


def _messages(wish: Wish) -> list[Json]:
    """A new first line makes the whole prompt new: what a prefix cache holds ends at the first difference."""
    text = wish.prompt if wish.cached else f"({secrets.token_hex(4)})\n{wish.prompt}"
    return [{"role": "user", "content": text}]


def _warmed_up(target: Target, body: Json, until_s: float, progress: Progress) -> Json:
    """Open the connection and let the server do what it does only once.

    Returns the body in words this server understands: not every one knows all of OpenAI's.
    """
    while True:
        limit = "max_tokens" if "max_tokens" in body else "max_completion_tokens"
        few = min(WARM_UP_TOKENS, body[limit])
        try:
            ask(target, {**body, limit: few}, until_s, progress.piece)
            return body
        except Rejected as exc:
            body = _other_words(target, body, exc)


def _other_words(target: Target, body: Json, exc: Rejected) -> Json:
    """Without the field the server does not take, or the error again, with what is known about it."""
    about = f"{exc.param} {exc.said}"
    if exc.status in (400, 422) and "stream_options" in body and "stream_options" in about:
        return {name: value for name, value in body.items() if name != "stream_options"}
    if exc.status in (400, 422) and "max_tokens" in body and "max_completion_tokens" in about:
        renamed = {name: value for name, value in body.items() if name != "max_tokens"}
        return {**renamed, "max_completion_tokens": body["max_tokens"]}
    if exc.status == 404 and "model" in about:
        served = target.models()
        if body["model"] not in served:
            raise ProbeError(model_missing(body["model"], served)) from None
    raise exc


def _answers(
    target: Target, wish: Wish, body: Json, until_s: float, progress: Progress
) -> tuple[list[Answer], Sequence[str]]:
    """One after the other, so that none waits for another; and what is to be said if time ran out."""
    answers: list[Answer] = []
    for number in range(1, wish.requests + 1):
        progress.step(f"request {number} of {wish.requests}")
        try:
            answers.append(ask(target, {**body, "messages": _messages(wish)}, until_s, progress.piece))
        except Impatience:
            if not answers:
                raise ProbeError(
                    f"No answer was complete within {wish.timeout_s:g} s; ask for fewer --tokens, "
                    "or allow more with --timeout."
                ) from None
            return answers, [f"Time ran out after {len(answers)} of {wish.requests} requests."]
    return answers, []
