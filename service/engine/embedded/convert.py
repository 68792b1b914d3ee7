"""Starts the conversion in a process of its own, so that the serving process stays free of what it loads."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from service.engine.embedded import child
from service.engine.embedded.source import ConversionFailed, Progress

PROGRAM = "service.engine.embedded.dequantize"
STEP = "step: "
SURROUNDINGS = {
    "CUDA_VISIBLE_DEVICES": "",  # the accelerator belongs to the engine
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # more threads gain nothing here and disturb whatever else runs
    "PYTHONUNBUFFERED": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
}


def convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Fill the empty `folder` with bf16 safetensors, configuration and tokenizer made from `gguf`.

    Takes about half a minute and 1 GB of memory in a child process; raises `ConversionFailed`.
    """
    log = gguf.with_suffix(".log")
    progress("converting the model to safetensors (about half a minute)")
    status = child.run(
        [sys.executable, "-P", "-m", PROGRAM, str(gguf), str(folder)],
        log,
        lambda gone_s: progress(f"converting the model: {_step(log)}, {gone_s:.0f} s"),
        env={**os.environ, **SURROUNDINGS, "PYTHONPATH": _import_path()},
    )
    if status != 0:
        raise _failure(status, log)


def _step(log: Path) -> str:
    steps = [line.removeprefix(STEP) for line in child.lines(log) if line.startswith(STEP)]
    return steps[-1] if steps else "starting"


def _import_path() -> str:
    """The child finds this package where this process found it, whatever folder either was started in."""
    root = str(Path(__file__).parents[3])
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([root, inherited]) if inherited else root


def _failure(status: int, log: Path) -> ConversionFailed:
    if status == -signal.SIGKILL:
        return ConversionFailed("it was killed, most likely because memory ran out: it needs about 1 GB")
    return ConversionFailed(f"exit status {status}, last words: {child.last_words(log)}")
