"""bench/RESULTS.md: one section for each model, each rewritten by a run of its own."""

from __future__ import annotations

import re
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")

INTRODUCTION = """# Twophase beside the bare engine and `vllm serve`

Written by `make bench`; do not edit. All of them run vLLM's engine in the same version with the same
arguments (eager, prefix caching, statistics on, 1 GiB of KV cache) on one machine. They are started once,
kept side by side, and asked one at a time in alternating order by the same client, which accepts nothing
but complete answers of exactly the length it asked for.

- **bare AsyncLLM** is the engine with one task per request and no HTTP; it is given token ids, so it
  neither renders nor tokenizes.
- **Twophase** runs with everything on: a tenants file with quotas, every request traced to a collector,
  metrics, a line in the log for each request. **Telemetry off** is the same without the last three.
- **Front-end CPU** is the CPU time of the server's own process, without its engine's processes.
- **TTFT** runs from sending the request to its first text; all streams of a turn start at once.
- **Memory** is the highest resident size of the front end's process during the turn.

To repeat: `python -m bench --write` for the one-layer model, `python -m bench --model smollm2 --write` for
the embedded one, `python -m bench.overload --write` for the last chapter; `--help` lists the rest.
`RUST=path/to/vllm-rs` adds vLLM's Rust front end.
"""

TITLES = {
    "one-layer": "One-layer random model: the front end shows",
    "smollm2": "SmolLM2-135M-Instruct: the whole",
}


def write_section(model: str, text: str, path: Path = RESULTS) -> None:
    """Put `text` in the place of what stands there for this model; other models' sections stay."""
    kept = sections(path.read_text()) if path.exists() else {}
    kept[TITLES.get(model, model)] = text.strip() + "\n"
    path.write_text("\n".join([INTRODUCTION, *(f"## {title}\n\n{body}" for title, body in kept.items())]))


def sections(document: str) -> dict[str, str]:
    """Title -> text."""
    parts = re.split(r"^## (.+)\n+", document, flags=re.MULTILINE)[1:]
    return {title: body.strip() + "\n" for title, body in zip(parts[::2], parts[1::2], strict=True)}
