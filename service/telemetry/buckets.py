"""Bucket bounds, in seconds but for ratios. Latencies reach from a millisecond to minutes."""

from __future__ import annotations

E12 = (1, 1.2, 1.5, 1.8, 2.2, 2.7, 3.3, 3.9, 4.7, 5.6, 6.8, 8.2)  # twelve even steps in a decade: IEC 60063

# The figure people watch: a quantile read off it is within a tenth, where the others are within a bucket.
TTFT_S = (*(round(step * scale, 5) for scale in (0.01, 0.1, 1) for step in E12), 10, 15, 22, 33, 47, 68, 120)
PHASE_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4),
    *(0.6, 0.8, 1, 1.5, 2, 3, 5, 8, 13, 20, 40, 60, 120),
)
REQUEST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 13, 20, 30, 45, 60, 120, 300, 600)
TPOT_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LOOP_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
PREDICTION_RATIO = (0.1, 0.25, 0.5, 0.65, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 10)
