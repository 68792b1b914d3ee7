"""What to do about a finding, in its own numbers."""

from __future__ import annotations

from service.probe.finding import Finding, Part


def span(ms: float) -> str:
    """Milliseconds in the unit that fits."""
    if ms < 9.95:
        return f"{ms:.2g} ms" if ms < 0.995 else f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 999.5 else f"{ms / 1e3:.2f} s"


def advice(finding: Finding) -> str:
    """One or two sentences for the largest part."""
    ms, share = finding.parts[finding.verdict], finding.shares[finding.verdict]
    took = f"{span(ms)} of {span(sum(finding.parts.values()))} ({share:.0%})"
    return SENTENCES[finding.verdict].format(took=took, half=span(ms / 2), **_counts(finding))


def _counts(finding: Finding) -> dict[str, str]:
    prompt = "" if finding.prompt_tokens is None else f" {finding.prompt_tokens:,} tokens of"
    cached = "" if not finding.cached_tokens else f", {finding.cached_tokens:,} of them from the cache"
    before = "" if finding.has_phases else ", with whatever came before the first token,"
    return {
        "reading": f"Reading{prompt} prompt{cached}{before}",
        "steps": f"{max(0, finding.output_tokens - 1):,}",
        "pace": span(finding.pace_ms.median),
    }


SENTENCES: dict[Part, str] = {
    "prefill": (
        "{reading} took {took}. Send less: fewer documents, a shorter history; half the prompt saves about "
        "{half} or more. Keep what stays the same first and what changes last, so that it stays cached."
    ),
    "decode": (
        "Writing took {took}: {steps} steps of {pace}. Ask for less output: a lower max_tokens, a schema in "
        "place of prose; half the answer saves about {half}. Streaming shows the first words sooner and ends "
        "no earlier."
    ),
    "queue": (
        "Waiting for other requests took {took}; neither reading nor writing is slow. Add capacity, or make "
        "requests smaller so that more of them fit."
    ),
    "service": "The server's own work took {took}, outside the engine. That is a fault to report.",
    "network": (
        "The way to the server and back, or this machine, took {took}. Measure from nearer, keep connections "
        "open, and look for a proxy that buffers."
    ),
}
