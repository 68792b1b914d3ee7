"""What one request holds of the service, given back together, once, on every way out."""

from __future__ import annotations

from collections.abc import Callable

from service.admission.quotas import Visit
from service.admission.slot import Slot


class Holding:
    """A count among those under way, a visit of the tenant's, a slot of the engine's: as far as it got."""

    def __init__(self, leave: Callable[[], None], visit: Visit | None = None) -> None:
        self._at_close = [leave]
        self._open = True
        self.visit = visit
        self.slot: Slot | None = None

    def at_close(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when everything is given back."""
        self._at_close.append(callback)

    def close(self, used_tokens: int = 0, *, complete: bool = False, ours: bool = False) -> None:
        """Give back. `ours`: it was refused for a reason of ours, and counts for nothing. Never waits."""
        if not self._open:
            return
        self._open = False
        if self.slot is not None:
            self.slot.release(complete)
        if self.visit is not None:
            self.visit.close(used_tokens, ours=ours)
        for callback in self._at_close:
            callback()
