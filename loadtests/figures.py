"""Quantiles of raw samples, and how sure a share is."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def quantile(values: Iterable[float], share: float) -> float | None:
    """The value that `share` of all lie below, between neighbours where it falls between; None of nothing."""
    found = list(values)
    return float(np.quantile(found, share)) if found else None


def mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    found = list(values)
    return float(np.mean(found)) if found else None
