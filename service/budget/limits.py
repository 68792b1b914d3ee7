"""Which limits hold for one request, and whose they are: the window's, the service's, the tenant's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

InputPolicy = Literal["reject", "truncate"]
OutputPolicy = Literal["reject", "clamp"]
Truncation = Literal["disabled", "auto"]
Source = Literal["window", "service", "tenant", "kv_cache"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of tokens, and what sets it."""

    tokens: int
    source: Source


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the service's settings, or one tenant's table, lay down; None leaves it to others."""

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    input_policy: InputPolicy | None = None
    output_policy: OutputPolicy | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything that bounds one request before its prompt is known. All figures are tokens."""

    context_window: int  # prompt and output together
    input: Limit  # at most window - 1, since an answer has at least one token
    output: Limit  # not yet less the prompt
    truncates: bool  # else an overlong prompt is refused
    clamps: bool  # else an overlong output is refused
    default_output_tokens: int | None = None  # for callers who name none; None: what is left
    kv_capacity_tokens: int = 0  # 0: the engine does not tell


def in_force(
    context_window: int,
    service: Allowance,
    tenant: Allowance | None = None,
    *,
    truncation: Truncation | None = None,
    default_output_tokens: int | None = None,
    kv_capacity_tokens: int = 0,
) -> Limits:
    """The tightest of all limits. A tenant's policy goes before the service's, `truncation` before both.

    A default above what its owners allow is lowered here and is no clamp: nobody asked for it.
    """
    tenant = tenant or Allowance()
    widest = Limit(context_window - 1, "window")
    inputs = _owned(service.max_input_tokens, tenant.max_input_tokens)
    outputs = _owned(service.max_output_tokens, tenant.max_output_tokens)
    default = default_output_tokens
    return Limits(
        context_window=context_window,
        input=tightest(widest, *inputs),
        output=tightest(widest, *outputs),
        truncates=_truncates(truncation, tenant.input_policy or service.input_policy),
        clamps=(tenant.output_policy or service.output_policy) != "reject",
        default_output_tokens=default and min([default, *(limit.tokens for limit in outputs)]),
        kv_capacity_tokens=kv_capacity_tokens,
    )


def tightest(*limits: Limit) -> Limit:
    """The smallest; of equals the first."""
    return min(limits, key=lambda limit: limit.tokens)


def _owned(service: int | None, tenant: int | None) -> list[Limit]:
    sources: Iterable[tuple[int | None, Source]] = ((service, "service"), (tenant, "tenant"))
    return [Limit(tokens, source) for tokens, source in sources if tokens is not None]


def _truncates(truncation: Truncation | None, policy: InputPolicy | None) -> bool:
    return policy == "truncate" if truncation is None else truncation == "auto"
