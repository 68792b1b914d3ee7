"""The tenants file: TOML to tenants, each fault told in a sentence that repeats nothing secret.

What stands at the wrong place in this file may be a key, so no sentence quotes a value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from service.admission.keys import KEY_BYTES, KEY_PREFIX, NAME, NAME_RULE
from service.admission.tenant import ANONYMOUS_NAME, Quota, Right, Tenant
from service.budget.limits import Allowance, InputPolicy, OutputPolicy
from service.errors import StartError, shown
from service.settings import nearest

SHA256_HEX = re.compile(r"[0-9A-Fa-f]{64}")


class TenantsError(StartError):
    """The tenants file cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A tenant and the digests of its keys."""

    tenant: Tenant
    digests: tuple[bytes, ...] = field(repr=False)


def read_tenants(path: Path) -> list[Holder]:
    """The tenants in a file.

    Raises:
        TenantsError: with one line for each thing to change.
    """
    try:
        return parse_tenants(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise TenantsError(f"{path} cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise TenantsError(f"{path} is not UTF-8 text") from None
    except TenantsError as exc:
        raise TenantsError("\n".join(f"{path}: {line}" for line in str(exc).splitlines())) from None


def parse_tenants(text: str) -> list[Holder]:
    """The tenants in the text of a file.

    Raises:
        TenantsError: with one line for each thing to change.
    """
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:  # besides the decoder's own: endless numbers, endless nesting
        raise TenantsError(f"this is not TOML: {exc}") from None
    tables = _tables(content)
    faults: list[str] = []
    rows = [_row(number, table, faults) for number, table in enumerate(tables, start=1)]
    known = [row for row in rows if row is not None]
    faults += _shared_names(known) + _shared_keys(known)
    if faults:
        raise TenantsError("\n".join(faults))
    return [_holder(row) for row in known]


def _sha256(value: str) -> str:
    if not SHA256_HEX.fullmatch(value):
        raise ValueError("holds no SHA-256 in 64 hexadecimal digits; `twophase key NAME` prints the line")
    return value.lower()


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(NAME_RULE)
    if value.startswith(KEY_PREFIX) and len(value) > KEY_BYTES:  # names are in metrics and logs
        raise ValueError("looks like an API key, and is no place for one")
    return value


def _own_name(value: str) -> str:
    if value == ANONYMOUS_NAME:
        raise ValueError(f"cannot be {ANONYMOUS_NAME}, which stands for callers without a key")
    return _name(value)


Count = Annotated[int, Field(ge=1, le=10**12)]


class _Row(BaseModel):
    """One `[[tenant]]` table as it may be written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(_own_name)]
    key_sha256: list[Annotated[str, AfterValidator(_sha256)]] = Field(min_length=1)
    max_input_tokens: Count | None = None
    max_output_tokens: Count | None = None
    input_policy: InputPolicy | None = None
    output_policy: OutputPolicy | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_concurrent: Count | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    rights: list[Right] = Field(default_factory=list)
    cache_group: Annotated[str, AfterValidator(_name)] | None = None
    remember_prompts: bool = True


def _tables(content: Mapping[str, Any]) -> Sequence[Any]:
    """The tables under the only name the file may have."""
    if strangers := sorted(content.keys() - {"tenant"}):
        raise TenantsError("\n".join(_stranger(name, ["tenant"]) for name in strangers))
    tables = content.get("tenant", [])
    if not isinstance(tables, list):
        raise TenantsError("begin each tenant with [[tenant]], in two pairs of brackets")
    if not tables:
        raise TenantsError("there is no tenant in it, so that nobody could use the service")
    return tables


def _row(number: int, table: Any, faults: list[str]) -> _Row | None:
    """The checked table, or None with its faults added."""
    try:
        return _Row.model_validate(table)
    except ValidationError as exc:
        name = table.get("name") if isinstance(table, dict) else None
        known = isinstance(name, str) and NAME.fullmatch(name) and not name.startswith(KEY_PREFIX)
        who = f"tenant {number} ({name})" if known else f"tenant {number}"
        faults += [f"{who}: {_sentence(error)}" for error in exc.errors(include_input=False)]
        return None


def _stranger(name: str, known: Collection[str]) -> str:
    """A name is repeated only when it is a known one misspelt: what else stands there may be a key."""
    if guess := nearest(name, known):
        return f"{shown(name)} has no meaning here{guess}"
    return f"a name has no meaning here; known are {', '.join(known)}"


def _sentence(error: Any) -> str:
    where = [part for part in error["loc"] if isinstance(part, str)]
    field_name = where[0] if where else "the table"
    match error["type"]:
        case "extra_forbidden":
            return _stranger(field_name, _Row.model_fields)
        case "missing":
            return f"{field_name} is missing"
        case "value_error":
            return f"{field_name} {error['ctx']['error']}"
        case _:
            message = error["msg"].removeprefix("Input should be ")
            return f"{field_name} should be {message}"


def _shared_names(rows: Sequence[_Row]) -> list[str]:
    names = [row.name for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    return [f"{names.count(name)} tenants are named {name}" for name in twice]


def _shared_keys(rows: Sequence[_Row]) -> list[str]:
    owner: dict[str, str] = {}
    faults = []
    for row in rows:
        for key in row.key_sha256:
            if key in owner:
                faults.append(f"tenants {owner[key]} and {row.name} have the same key")
            owner.setdefault(key, row.name)
    return faults


def _holder(row: _Row) -> Holder:
    tenant = Tenant(
        name=row.name,
        cache_group=row.cache_group or row.name,
        allowance=Allowance(row.max_input_tokens, row.max_output_tokens, row.input_policy, row.output_policy),
        quota=Quota(row.requests_per_minute, row.tokens_per_minute, row.max_concurrent),
        priority=row.priority,
        rights=frozenset(row.rights),
        remember_prompts=row.remember_prompts,
    )
    return Holder(tenant, tuple(bytes.fromhex(key) for key in row.key_sha256))
