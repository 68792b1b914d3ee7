"""Who is asking: the tenant a request's key belongs to."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Sequence
from pathlib import Path

from service.admission.keys import UNKNOWN_KEY, bearer_key, digest
from service.admission.tenant import Tenant, anonymous
from service.admission.tenants_file import Holder, TenantsError, read_tenants
from service.errors import Unauthenticated

log = logging.getLogger(__name__)


class Tenants:
    """All tenants of the file, which may be read again while the service runs; without one, `anonymous`."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises TenantsError when there is a file and it cannot be used."""
        self._path = path
        self._anonymous = anonymous()
        self._digests: list[tuple[bytes, Tenant]] = []
        self._take([] if path is None else read_tenants(path))

    def __repr__(self) -> str:
        return f"Tenants({', '.join(self.names)})"

    @property
    def need_keys(self) -> bool:
        """Whether callers must show a key."""
        return self._path is not None

    @property
    def names(self) -> list[str]:
        """All names, in the file's order."""
        return list(dict.fromkeys(tenant.name for _, tenant in self._digests)) or [self._anonymous.name]

    def identify(self, authorization: Sequence[bytes]) -> Tenant:
        """The tenant of a request, given the values of all its `Authorization` headers as they came.

        Raises:
            Unauthenticated: a key is needed, and this is none or nobody's.
        """
        if self._path is None:
            return self._anonymous
        given = digest(bearer_key(authorization))
        found = None
        for known, tenant in self._digests:  # all of them, so that the time tells nothing
            if hmac.compare_digest(known, given):
                found = tenant
        if found is None:
            raise Unauthenticated(UNKNOWN_KEY)
        return found

    def reload(self) -> bool:
        """Read the file again. One that cannot be used changes nothing, and the log says why."""
        if self._path is None:
            return True
        try:
            self._take(read_tenants(self._path))
        except TenantsError as exc:
            log.error("the tenants stay as they were: %s", exc)
            return False
        log.info("%d tenants read from %s", len(self.names), self._path)
        return True

    def _take(self, holders: Sequence[Holder]) -> None:
        self._digests = [(key, holder.tenant) for holder in holders for key in holder.digests]
