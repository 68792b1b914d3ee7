"""The salts of the cache groups, under one secret of the server's."""

from __future__ import annotations

import secrets

from pydantic import SecretStr

from service.admission.salt import cache_salt

SECRET_BYTES = 32


class Salt:
    """Each group's salt, made once. Without a secret of the operator's, one that lasts until the end."""

    def __init__(self, secret: SecretStr | None) -> None:
        given = None if secret is None else secret.get_secret_value().encode()
        self._secret = given or secrets.token_bytes(SECRET_BYTES)
        self._made: dict[str, str] = {}

    def of(self, group: str, adapter: str | None = None) -> str:
        """The salt of a cache group, or of an adapter's share in it.

        Groups come from the tenants file, so they are few; adapters come and go, and theirs are made anew.
        """
        if adapter is not None:
            return cache_salt(self._secret, group, adapter)
        if group not in self._made:
            self._made[group] = cache_salt(self._secret, group)
        return self._made[group]
