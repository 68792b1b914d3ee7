"""Which resource a step ran out of, told from the server's own metrics while it lasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.scrape import Scrape, Window
from loadtests.summary import Row

KV_FULL = 0.9
LOOP_LAG_S = 0.02
LATE_MS = 50.0
WAITING = 0.5  # requests, in the mean


@dataclass(frozen=True, slots=True)
class Finding:
    """The resource in a word or two, the sentence for the report, and what it was told from."""

    resource: str
    sentence: str
    evidence: dict[str, float]


def limit_of(row: Row, scrapes: Sequence[Scrape]) -> Finding:
    """What limits the load of `row`, from the most certain sign to the least."""
    window = Window(scrapes, *row.window)
    if row.lag_p99_ms and row.step.open and row.lag_p99_ms > LATE_MS:
        return Finding(
            "load generator",
            "The load generator itself was late: give it more processes or another machine.",
            {"send lag p99, ms": row.lag_p99_ms},
        )
    if not window:
        return Finding("unknown", "The server shows no metrics that are known here.", {})
    return _of_server(_evidence(row, window))


def _evidence(row: Row, window: Window) -> dict[str, float]:
    phases = row.phase_means()
    spent = sum(phases.values())
    found = {
        "KV cache in use, highest": window.highest("vllm:kv_cache_usage_perc"),
        "requests running, mean": window.mean("vllm:num_requests_running"),
        "requests running, highest": window.highest("vllm:num_requests_running"),
        "requests waiting, mean": _waiting(window),
        "preemptions": window.rise("vllm:num_preemptions_total"),
        "event loop lag, mean s": window.mean_of("twophase_event_loop_lag_seconds"),
        "prompt tokens/s": window.rate("vllm:prompt_tokens_total"),
        "output tokens/s": window.rate("vllm:generation_tokens_total"),
        "refused": row.value("refused_share"),
        "prefill share of an answer": phases.get("prefill_ms", 0.0) / spent if spent else None,
        "decode share of an answer": phases.get("decode_ms", 0.0) / spent if spent else None,
    }
    return {name: round(value, 4) for name, value in found.items() if value is not None}


def _waiting(window: Window) -> float | None:
    """In the engine's queue, and before it."""
    engine = window.mean("vllm:num_requests_waiting")
    before = window.mean("twophase_inflight{state=admission}")
    return None if engine is None and before is None else (engine or 0.0) + (before or 0.0)


def _of_server(found: dict[str, float]) -> Finding:
    if found.get("event loop lag, mean s", 0.0) > LOOP_LAG_S:
        return Finding(
            "front end", "The server's event loop was late: its own work holds up the streams.", found
        )
    if found.get("KV cache in use, highest", 0.0) >= KV_FULL or found.get("preemptions", 0.0) > 0:
        return Finding(
            "KV cache",
            "The key-value cache was full: fewer or shorter contexts at a time, or more memory for it.",
            found,
        )
    work = _work(found)
    if found.get("requests waiting, mean", 0.0) >= WAITING:
        running = found.get("requests running, highest", 0.0)
        return Finding(
            f"batch, {work}",
            f"All {running:.0f} places of the batch were taken and requests waited for one, while the cache "
            f"had room. What fills a place is {work}: more places help until tokens/s stop growing.",
            found,
        )
    if found.get("refused", 0.0) > 0:
        return Finding(
            f"compute, {work}",
            "Nobody waited long, since the server refused what it could not begin in time; what its answers "
            f"spent their time on is {work}.",
            found,
        )
    return Finding(f"compute, {work}", f"Nothing was full; answers take their time in {work}.", found)


def _work(found: dict[str, float]) -> str:
    prefill = found.get("prefill share of an answer", 0.0)
    decode = found.get("decode share of an answer", 0.0)
    if not prefill and not decode:
        return "the engine"
    return "prefill" if prefill > decode else "decode"
