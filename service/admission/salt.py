"""What keeps one group's prefix cache apart from another's."""

from __future__ import annotations

import hashlib
import hmac


def cache_salt(secret: bytes, group: str, adapter: str | None = None) -> str:
    """The salt of a cache group, and of one adapter's share in it: nobody without `secret` can make it.

    Each part is preceded by its length, so that no two lists of parts are the same bytes.
    """
    parts = [group] if adapter is None else [group, adapter]
    message = b"".join(_with_length(part.encode()) for part in parts)
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part
