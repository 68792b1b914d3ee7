"""Coroutines driven by hand: most end at their first step, and then no task is needed for them."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


@types.coroutine
def rest(coroutine: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """What is left of a coroutine whose first step has been taken and now waits for `awaited`."""
    while True:
        try:
            value = yield awaited
        except BaseException as exc:
            step = partial(coroutine.throw, exc)
        else:
            step = partial(coroutine.send, value)
        try:
            awaited = step()
        except StopIteration as end:
            result: T = end.value
            return result
