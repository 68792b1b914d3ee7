"""Property-based tests judge results, not how busy the machine is: no time limit per example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
