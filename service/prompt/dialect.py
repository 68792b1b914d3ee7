"""The filters and functions chat templates may use, each made to keep the origin of the text it returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Environment, Undefined, pass_environment
from jinja2.exceptions import TemplateError
from jinja2.filters import make_attrgetter

from service.prompt.traced import Traced, join, origin_of, spans_of, whole

# Filters that return one of their values, or cut and join them with nothing but the methods of `Traced`.
EXACT = frozenset(
    ("attr", "d", "default", "first", "join", "last", "max", "min", "random", "replace", "string", "trim")
)


class TemplateRefusal(TemplateError):
    """The template itself says that it cannot render these messages."""


def raise_exception(message: object) -> NoReturn:
    """A template's way to refuse."""
    raise TemplateRefusal(str(message))


def strftime_now(pattern: str) -> str:
    """The date, for templates that tell the model."""
    return datetime.now().strftime(pattern)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: nothing escaped for HTML."""
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return settled(text, (value,), exact=False)


def printed(value: Any) -> Any:
    """What an expression puts into the output: what has parts is one text, the caller's if any part is."""
    if type(value) in (str, Traced) or value is None or isinstance(value, (int, float, Undefined)):
        return value
    return settled(str(value), (value,), exact=False)


@pass_environment
def joined(environment: Environment, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
    """Jinja's `join`, keeping origins."""
    parts = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    return join(map(printed, parts), d)


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose text counts as the caller's if the caller's went into it and exactness is unproven."""
    given_from = 1 if hasattr(function, "jinja_pass_arg") else 0
    exact = name in EXACT

    @wraps(function)
    def keep_origin(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not isinstance(result, str):
            return result
        return settled(result, (*args[given_from:], *kwargs.values()), exact)

    return keep_origin


def settled(text: str, inputs: tuple[Any, ...], exact: bool) -> str:
    """`text` with an origin: its own if `exact` and it has any, else that of what it was made from."""
    if (exact and spans_of(text)) or any(text is given for given in inputs):
        return text
    origin = origin_of(inputs)
    return str.__str__(text) if origin.of_template else whole(text, origin)


def filters_of(inherited: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Jinja's filters, guarded, with our own in place of three of them."""
    ours: dict[str, Callable[..., Any]] = {"tojson": tojson, "safe": printed, "join": joined}
    return {name: guarded(name, function) for name, function in inherited.items()} | ours
