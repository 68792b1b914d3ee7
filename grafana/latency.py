"""What callers feel: the wait for the first token, the pace after it, and where the time goes."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.builders.heatmap import Panel as Heatmap
from grafana_foundation_sdk.builders.timeseries import Panel as Lines

from grafana.panels import SECONDS, Query, board, heat, lines, row, stacked
from grafana.promql import gained, quantile, rate

TTFT = "twophase_ttft_seconds"
TPOT = "twophase_tpot_seconds"
GAP = "twophase_chunk_gap_seconds"
TOTAL = "twophase_request_seconds"
PHASE = "twophase_phase_seconds"


def dashboard() -> Dashboard:
    """The dashboard *Latency*."""
    made = board(
        "latency",
        "Latency",
        "An answer's time is its wait for the first token plus its tokens times the time of each: "
        "two terms with two fixes.",
    )
    row(made, "The wait for the first token: queue and prefill", first_token_map(), first_token_quantiles())
    row(made, "What makes that wait long", first_token_by_prompt(), first_token_by_cache())
    row(made, "The pace after it: decode", pace_by_company(), gaps())
    row(made, "The whole answer", phases(), totals())
    return made


def first_token_map() -> Heatmap:
    """TTFT as a heat map."""
    return heat(
        "Time to first token",
        SECONDS,
        "Answers by how long their caller waited for the first content, waiting for others included. Two "
        "bands are two kinds of requests: short and long prompts, or prompts found in the prefix cache and "
        "prompts that were not; the two panels below tell which. A mark is a request with a trace: open one "
        "from the slow band to see which phase made it slow.",
        Query(gained(f"{TTFT}_bucket", by="le"), "{{le}}", exemplars=True),
    )


def first_token_quantiles() -> Lines:
    """TTFT quantiles."""
    return lines(
        "Time to first token, quantiles",
        SECONDS,
        "Half of the callers waited less than p50, one in a hundred longer than p99. When all lines rise "
        "together, prompts have grown or the prefix cache has gone cold: prefill is the work. When p99 "
        "leaves p50 behind, a few wait for others: look at the queue on Bottleneck.",
        *_quantiles(TTFT, 0.5, 0.9, 0.99),
    )


def first_token_by_prompt() -> Lines:
    """TTFT by prompt length."""
    return lines(
        "Time to first token by prompt length, p95",
        SECONDS,
        "Prefill reads the whole prompt before the first token, and costs more than in proportion to its "
        "length. If only the long prompts are slow, send less: fewer documents, a shorter history. If the "
        "short ones are slow as well, they stand in line behind the long ones.",
        Query(quantile(0.95, TTFT, by="prompt_bucket"), "{{prompt_bucket}} tokens"),
    )


def first_token_by_cache() -> Lines:
    """TTFT of cached and of cold prompts."""
    return lines(
        "Time to first token by prefix cache, p95",
        SECONDS,
        "A hit had at least half of its prompt in the cache and computed only the rest. The distance "
        "between the lines is what a stable prompt beginning saves: put what stays the same first and what "
        "changes last. Lines that lie together mean that prefill is not what callers wait for.",
        Query(quantile(0.95, TTFT, by="cache"), "{{cache}}"),
    )


def pace_by_company() -> Lines:
    """TPOT by concurrency."""
    return lines(
        "Time per output token by answers written at once, p95",
        SECONDS,
        "Decode reads all weights for every step, whether the step writes one answer or many: company is "
        "nearly free until memory traffic or arithmetic is full. A line that rises with nobody joining it "
        "means longer contexts. When the crowded lines lie too high for your readers, admit fewer at once.",
        Query(quantile(0.95, TPOT, by="concurrency_bucket"), "{{concurrency_bucket}} at once"),
    )


def gaps() -> Lines:
    """Gaps between chunks."""
    return lines(
        "Gap between chunks of a stream",
        SECONDS,
        "What a reader sees as stutter. p50 is the pace of decode. A p99 far above it means that streams "
        "stand still now and then: another request's long prefill shares their steps, or an answer was "
        "pushed out of the KV cache and is computed again; preemptions on Bottleneck tell which.",
        *_quantiles(GAP, 0.5, 0.99),
    )


def phases() -> Lines:
    """Mean time per phase, stacked."""
    begun = f"{rate(f'{PHASE}_count', phase='prefill')} > 0"  # there may be refusals and nothing else
    return stacked(
        "Mean time by phase",
        SECONDS,
        "Seconds spent in each phase for every answer begun; their sum is the mean time in our hands. The "
        "widest band is what to work on. Prefill: shorter or better cached prompts. Decode: shorter answers. "
        "Queue and admission: more capacity, or less context per request. Render: our own, report it.",
        Query(f"{rate(f'{PHASE}_sum', by='phase')} / scalar({begun})", "{{phase}}"),
    )


def totals() -> Lines:
    """Whole answers."""
    return lines(
        "Time of a whole answer",
        SECONDS,
        "From request to last byte, of complete answers, streamed or not: streaming delivers the same work "
        "earlier and does not shorten it. Mostly decode, so it follows the length of answers; if p95 rises "
        "and the time per token does not, answers have become longer.",
        *_quantiles(TOTAL, 0.5, 0.95, outcome="ok"),
    )


def _quantiles(histogram: str, *qs: float, **labels: str) -> list[Query]:
    """A line for each; traces are marked on the highest only, or they would lie over each other."""
    return [Query(quantile(q, histogram, **labels), f"p{100 * q:.0f}", exemplars=q == qs[-1]) for q in qs]
