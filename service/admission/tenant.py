"""One tenant: what it may do, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from service.budget.limits import Allowance
from service.errors import NotAllowed

Right = Literal["explain_text", "priority", "lora_admin"]

ANONYMOUS_NAME = "anonymous"


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may use of the service; None is no limit of its own."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """Everything but the keys, which are kept apart so that no tenant can ever show one."""

    name: str
    cache_group: str
    allowance: Allowance = field(default_factory=Allowance)
    quota: Quota = field(default_factory=Quota)
    priority: int = 0
    rights: frozenset[Right] = frozenset()
    remember_prompts: bool = True

    def may(self, right: Right) -> bool:
        """Whether the tenant has a right."""
        return right in self.rights

    def require(self, right: Right) -> None:
        """Raises NotAllowed unless the tenant has the right."""
        if right in self.rights:
            return
        if self.name == ANONYMOUS_NAME:
            raise NotAllowed(
                f"This needs an API key with the right {right}, and there are no keys here; "
                "whoever runs this service names them in TWOPHASE_TENANTS_FILE."
            )
        raise NotAllowed(f"This API key does not have the right {right}; ask whoever runs this service.")


def anonymous() -> Tenant:
    """Whoever comes while no tenants are configured. It sees its own text; rights over others need a name."""
    return Tenant(ANONYMOUS_NAME, cache_group=ANONYMOUS_NAME, rights=frozenset(("explain_text",)))
