"""Why a probe could not be made, in a sentence that says what to do."""

from __future__ import annotations


class ProbeError(Exception):
    """For whoever probes: the message says what is wrong and what to change."""


class Impatience(ProbeError):
    """The time limit of the probe has passed."""
