"""API keys: found in a request, turned into digests, made. Nothing here keeps, shows or logs one."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.errors import Unauthenticated

KEY_PREFIX = "tp-"  # lets secret scanners, and people, see what a leaked string is
KEY_BYTES = 32
LONGEST_KEY = 512  # bytes; what is longer is nobody's key and is not worth hashing

UNKNOWN_KEY = "This API key is not known here."
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,63}")  # of tenants and cache groups


def bearer_key(authorization: Sequence[bytes]) -> bytes:
    """The key in a request, given the values of all its `Authorization` headers as they came.

    Raises:
        Unauthenticated: there is none, or more than one, or it cannot be a key.
    """
    if not authorization:
        raise Unauthenticated("This service needs an API key; send it as Authorization: Bearer KEY.")
    if len(authorization) > 1:  # two readers could take two different ones
        raise Unauthenticated("The request has more than one Authorization header; send one.")
    scheme, _, rest = authorization[0].strip(b" \t").partition(b" ")
    key = rest.strip(b" \t")
    if scheme.lower() != b"bearer" or not key:
        raise Unauthenticated("The Authorization header must be Bearer, a space, and an API key.")
    if len(key) > LONGEST_KEY:
        raise Unauthenticated(UNKNOWN_KEY)
    return key


def digest(key: bytes) -> bytes:
    """What is kept in place of a key. Keys are long and random, so a plain hash tells nothing of them."""
    return hashlib.sha256(key).digest()


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that has just been made, to be shown once, and the table its tenant needs in the file."""

    key: str = field(repr=False)
    table: str


def new_key(name: str) -> NewKey:
    """A key for tenant `name`.

    Raises:
        ValueError: no tenant can have that name.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"a tenant's name {NAME_RULE}")
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    table = f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{digest(key.encode()).hex()}"]\n'
    return NewKey(key, table)


NAME_RULE = "has 1 to 64 letters, digits or any of . _ : @ / + - and begins with a letter or digit"
