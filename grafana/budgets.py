"""Who may use how many tokens, who does, and what comes to nothing."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.builders.timeseries import Panel as Lines

from grafana.panels import REQUESTS, SHARE, TOKENS, TOKENS_PER_S, Query, board, lines, row, stacked
from grafana.promql import rate, total

REFUSED = "budget_rejected|rate_limited|overloaded|deadline|draining"


def dashboard() -> Dashboard:
    """The dashboard *Budgets and tenants*."""
    made = board(
        "budgets",
        "Budgets and tenants",
        "Every request has an input and an output budget inside the context window. Here is what the budgets "
        "did, what was refused, and who used the tokens.",
    )
    row(made, "What budgets did", actions(), refusals())
    row(made, "What is promised and what is lost", reserved(), wasted(), wasted_share())
    row(made, "Tenants", tenant_output(), tenant_input(), tenant_cached())
    return made


def actions() -> Lines:
    """Budget actions."""
    return stacked(
        "Budget actions, by whose limit",
        REQUESTS,
        "Prompts cut, outputs clamped, and requests refused, with the limit that decided it. Many cut by the "
        "window: conversations outgrow the model; summarise earlier or take a longer window. Many clamped or "
        "refused by the service or a tenant: a limit is tighter than the need. By kv_cache: one request "
        "would not fit the whole cache.",
        Query(rate("twophase_budget_actions_total", by="action, limit"), "{{action}}, {{limit}}"),
    )


def refusals() -> Lines:
    """Refusals as a share of all requests."""
    share = f"{rate('twophase_requests_total', by='outcome', outcome='~' + REFUSED)} / scalar({_requests()})"
    return stacked(
        "Refused requests, of all",
        SHARE,
        "budget_rejected: too long for its limits. rate_limited: a tenant is over its own quota. overloaded "
        "and deadline: no capacity in time; add some or accept that callers retry later. draining: a replica "
        "is going down, which a load balancer should have noticed.",
        Query(share, "{{outcome}}"),
    )


def reserved() -> Lines:
    """Reserved cache tokens against capacity."""
    return lines(
        "KV cache tokens, reserved against capacity",
        TOKENS,
        "What admitted requests may still come to need, prompt and whole output budget, against what the "
        "cache holds. One long context takes the place of several short ones. Reserved close to capacity "
        "while the cache itself is half empty means output budgets far above what answers use: lower them.",
        Query(total("twophase_kv_reserved_tokens"), "reserved"),
        Query(total("twophase_kv_capacity_tokens"), "capacity"),
    )


def wasted() -> Lines:
    """Wasted tokens."""
    return lines(
        "Output tokens, and those for nobody",
        TOKENS_PER_S,
        "Wasted are tokens of answers that nobody got whole: their reader left, or they failed. Some waste "
        "is normal where people read. If it rises with latency, callers give up waiting and their retries "
        "add to the load.",
        Query(rate("twophase_tokens_total", kind="output"), "output"),
        Query(rate("twophase_tokens_total", kind="wasted"), "wasted"),
    )


def wasted_share() -> Lines:
    """Wasted share."""
    output = rate("twophase_tokens_total", kind="output")
    return lines(
        "Wasted output, of all",
        SHARE,
        "The part of decode work that came to nothing. Streaming keeps it low, since a reader can stop early "
        "and the engine stops with them; clients that do not stream and have a short timeout drive it up.",
        Query(f"{rate('twophase_tokens_total', kind='wasted')} / {output}", "wasted"),
    )


def tenant_output() -> Lines:
    """Output tokens by tenant."""
    return stacked(
        "Output tokens by tenant",
        TOKENS_PER_S,
        "Who decode works for. A tenant far above its usual band crowds the others' answers: give it a limit "
        "on concurrent requests or on tokens per minute.",
        Query(rate("twophase_tenant_tokens_total", by="tenant", kind="output"), "{{tenant}}"),
    )


def tenant_input() -> Lines:
    """Prompt tokens by tenant."""
    return stacked(
        "Prompt tokens by tenant",
        TOKENS_PER_S,
        "Who prefill works for, cached tokens included. One tenant's long prompts delay everybody's first "
        "token: an input budget or quota for that tenant protects the rest.",
        Query(rate("twophase_tenant_tokens_total", by="tenant", kind="input"), "{{tenant}}"),
    )


def tenant_cached() -> Lines:
    """Cached share by tenant."""
    cached = rate("twophase_tenant_tokens_total", by="tenant", kind="cached_input")
    every = rate("twophase_tenant_tokens_total", by="tenant", kind="input")
    return lines(
        "Prompt tokens found in the cache, by tenant",
        SHARE,
        "The cache is shared inside a tenant's cache group only. A tenant at zero sends prompts that differ "
        "early; show its developers the first differing token of an explained request.",
        Query(f"{cached} / {every}", "{{tenant}}"),
    )


def _requests() -> str:
    return rate("twophase_requests_total")
