"""What to fix first: which of queue, cache, prefill, decode, front end and budget binds the service."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.builders.statetimeline import Panel as Timeline
from grafana_foundation_sdk.builders.timeseries import Panel as Lines

from grafana.panels import (
    COUNT,
    EVENTS,
    REQUESTS,
    SECONDS,
    SHARE,
    TOKENS,
    TOKENS_PER_S,
    Query,
    against,
    board,
    lines,
    row,
    stacked,
    states,
)
from grafana.promql import mean, quantile, rate, select, total

# The values of instance:twophase_bound:state, in the order in which the rule tries them.
STATES = {
    0: ("idle", "dark-gray"),
    1: ("budget", "purple"),
    2: ("KV capacity", "red"),
    3: ("queue", "orange"),
    4: ("prefill", "blue"),
    5: ("decode", "green"),
    6: ("front end", "dark-red"),
    7: ("reader", "yellow"),
}


def dashboard() -> Dashboard:
    """The dashboard *Bottleneck*."""
    made = board(
        "bottleneck",
        "Bottleneck",
        "Prefill is bound by arithmetic, decode by memory traffic, and many users by the space for their "
        "keys and values. Each has its own fix; this page says which one is due.",
    )
    row(made, "What binds the service", bound_by(), pressures())
    row(made, "Room: the KV cache and those who wait for it", cache_use(), waiting())
    row(made, "Work: the engine's steps", batch(), throughput())
    row(made, "Prefill: computed or found in the cache", cache_hits(), cache_misses(), prompt_sources())
    row(made, "Front end: our own part", loop_lag(), under_way())
    return made


def bound_by() -> Timeline:
    """The verdict at each moment."""
    return states(
        "Bound by",
        "The one cause that explains most of the requests of the last minute. Budget: limits refuse what the "
        "engine could do. KV capacity: requests wait, or are pushed out, because the cache is full; allow "
        "less context or add memory. Queue: more requests than slots. Prefill: shorten prompts or keep their "
        "beginnings stable. Decode: ask for shorter answers. Front end: our fault. Reader: slow clients.",
        Query(select("instance:twophase_bound:state"), "{{instance}}"),
        STATES,
    )


def pressures() -> Lines:
    """What the verdict rests on."""
    return stacked(
        "Requests by cause",
        SHARE,
        "The figures behind the verdict: of the requests of the last minute, how many were bound by what. "
        "One broad band is a clear case. Several of equal width mean that fixing one will gain little before "
        "the next one binds.",
        Query(f"avg by (by) ({select('instance:twophase_pressure:ratio')})", "{{by}}"),
    )


def cache_use() -> Lines:
    """KV use and preemptions."""
    return lines(
        "KV cache in use, and preemptions",
        SHARE,
        "Keys and values of every token of every running request, prompt and answer alike, so it grows while "
        "answers grow. Full is fine as long as nobody waits. Preemptions (right axis) mean that answers were "
        "thrown out and are computed again: let fewer requests run, or give the cache more room.",
        Query(f"max by (instance) ({select('vllm:kv_cache_usage_perc')})", "{{instance}} in use"),
        Query(rate("vllm:num_preemptions_total"), "preemptions", axis=EVENTS),
    )


def waiting() -> Lines:
    """Who waits, and for what."""
    return stacked(
        "Requests that wait, by reason",
        COUNT,
        "Admission: held back by us, before the engine. Capacity: the engine has no slot or no cache for "
        "them. Deferred: the engine waits for something else, such as an adapter. A line that never comes "
        "back to zero is demand beyond capacity: waiting does not help; refuse earlier or add replicas.",
        Query(total("twophase_inflight", state="admission"), "admission"),
        Query(total("vllm:num_requests_waiting_by_reason", by="reason"), "{{reason}}"),
    )


def batch() -> Lines:
    """Batch size and tokens per step."""
    return lines(
        "Running answers and tokens per step",
        COUNT,
        "A decode step writes one token for each running answer; a step with far more tokens (right axis) "
        "than answers carries prefill. Throughput grows with the batch, while one stream gets no faster. A "
        "batch that stays small while requests wait is held small by its limit or by the cache.",
        Query(total("vllm:num_requests_running"), "running answers"),
        Query(mean("vllm:iteration_tokens_total"), "tokens per step", axis=TOKENS),
    )


def throughput() -> Lines:
    """Tokens in and out."""
    return lines(
        "Tokens each second",
        TOKENS_PER_S,
        "Prompt tokens are read many at a time and bound by arithmetic; output tokens (right axis) are "
        "written one step at a time and bound by memory. When output stops growing although more answers "
        "run, decode is full. Prompt tokens that were in the cache are not counted here.",
        Query(rate("vllm:prompt_tokens_by_source_total", source="local_compute"), "prompt, computed"),
        Query(rate("vllm:generation_tokens_total"), "output", axis=TOKENS_PER_S),
    )


def cache_hits() -> Lines:
    """Prefix-cache hit rate."""
    return lines(
        "Prompt tokens found in the prefix cache",
        SHARE,
        "Of the prompt tokens that were looked up, how many had their keys and values in the cache. Reuse "
        "starts at the first token and ends at the first difference, in whole blocks. A drop means that "
        "something changes early in the prompt (a date, an id, a reordered tool list): move it to the end.",
        Query(
            f"{rate('vllm:prefix_cache_hits_total')} / {rate('vllm:prefix_cache_queries_total')}",
            "found",
        ),
    )


def cache_misses() -> Lines:
    """Why prompts were not in the prefix cache."""
    return stacked(
        "Prompts that were not all cached, by why",
        REQUESTS,
        "Where the match with what the same group sent before ends. Never seen is new text and has to be "
        "read; a block boundary is harmless. All others can be avoided: an edited or inserted message, cut "
        "history, a system prompt with a date in it, other tools or template arguments, a reply that did not "
        "come back as it was. The explain route names the message and the token.",
        Query(rate("twophase_cache_miss_total", by="cause"), "{{cause}}"),
    )


def prompt_sources() -> Lines:
    """Prompt tokens by source."""
    return stacked(
        "Prompt tokens by source",
        TOKENS_PER_S,
        "What prefill had to compute, what the prefix cache had, and what came from elsewhere. Only computed "
        "tokens cost time before the first token. If they grow while requests do not, prompts got longer or "
        "colder.",
        Query(rate("vllm:prompt_tokens_by_source_total", by="source"), "{{source}}"),
    )


def loop_lag() -> Lines:
    """Event-loop lag."""
    return against(
        lines(
            "Lag of the event loop",
            SECONDS,
            "How late the one thread that writes all streams came to a timer; every stream waits as long. A "
            "few milliseconds are normal. Above the line readers can see it: the machine lacks CPU for the "
            "front end, or something blocks the loop, which is a fault to report.",
            *(Query(quantile(q, "twophase_event_loop_lag_seconds"), f"p{100 * q:.0f}") for q in (0.5, 0.99)),
        ),
        (0.1, "red"),
    )


def under_way() -> Lines:
    """Requests under way by state."""
    return stacked(
        "Requests under way, by what they are doing",
        COUNT,
        "Being read and rendered, waiting for a slot, in the engine without a token, being written, or "
        "complete with bytes still to send. Many in sending means readers that cannot keep up; many in "
        "render means that the front end is short of CPU; many without a token belong to queue or prefill.",
        Query(total("twophase_inflight", by="state"), "{{state}}"),
    )
