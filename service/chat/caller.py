"""Who asks, and how long they are willing to wait."""

from __future__ import annotations

from dataclasses import dataclass

from service.admission.tenant import Tenant


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant behind a request, and its deadline on the monotonic clock, if it named one."""

    tenant: Tenant
    deadline_s: float | None = None
