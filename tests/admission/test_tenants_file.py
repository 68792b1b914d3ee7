"""The tenants file: what it may say, and how its faults are told."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from service.admission.keys import new_key
from service.admission.tenant import Quota
from service.admission.tenants_file import TenantsError, parse_tenants, read_tenants
from service.budget.limits import Allowance

A, B = (sha256(name).hexdigest() for name in (b"a", b"b"))
WHOLE = f"""
[[tenant]]
name = "acme"
key_sha256 = ["{A}", "{B}"]
max_input_tokens = 6000
max_output_tokens = 1000
input_policy = "truncate"
output_policy = "clamp"
requests_per_minute = 600
tokens_per_minute = 200000
max_concurrent = 16
priority = -1
rights = ["explain_text", "priority", "lora_admin"]
cache_group = "acme-family"
remember_prompts = false
"""


def faults(text: str) -> str:
    """What is said about a file."""
    with pytest.raises(TenantsError) as refused:
        parse_tenants(text)
    return str(refused.value)


def table(**fields: str) -> str:
    """A table with the two required names, and others in TOML's own spelling."""
    known = {"name": '"acme"', "key_sha256": f'["{A}"]', **fields}
    return "[[tenant]]\n" + "\n".join(f"{name} = {value}" for name, value in known.items()) + "\n"


def test_every_name_of_the_contract_is_read() -> None:
    (holder,) = parse_tenants(WHOLE)
    tenant = holder.tenant
    assert tenant.name == "acme"
    assert tenant.cache_group == "acme-family"
    assert tenant.allowance == Allowance(6000, 1000, "truncate", "clamp")
    assert tenant.quota == Quota(600, 200_000, 16)
    assert tenant.priority == -1
    assert tenant.may("lora_admin") and tenant.may("priority") and tenant.may("explain_text")
    assert not tenant.remember_prompts
    assert holder.digests == (sha256(b"a").digest(), sha256(b"b").digest())


def test_a_name_and_a_key_are_enough() -> None:
    (holder,) = parse_tenants(table())
    tenant = holder.tenant
    assert tenant.cache_group == "acme"
    assert tenant.allowance == Allowance()
    assert tenant.quota == Quota()
    assert not tenant.rights
    assert tenant.remember_prompts


def test_what_the_key_command_prints_can_be_pasted() -> None:
    text = new_key("one").table + new_key("two").table
    assert [holder.tenant.name for holder in parse_tenants(text)] == ["one", "two"]


def test_a_hash_may_be_in_capitals() -> None:
    (holder,) = parse_tenants(table(key_sha256=f'["{A.upper()}"]'))
    assert holder.digests == (bytes.fromhex(A),)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tp-h17N1pm07": "1"}, "a name has no meaning here; known are"),
        ({"max_input_token": "5"}, "max_input_token has no meaning here; did you mean max_input_tokens?"),
        ({"max_input_tokens": "0"}, "max_input_tokens should be greater than or equal to 1"),
        ({"max_input_tokens": '"many"'}, "max_input_tokens should be a valid integer"),
        ({"max_concurrent": "true"}, "max_concurrent should be a valid integer"),
        ({"max_concurrent": "1.5"}, "max_concurrent should be a valid integer"),
        ({"input_policy": '"cut"'}, "input_policy should be 'reject' or 'truncate'"),
        ({"rights": '["root"]'}, "rights should be 'explain_text', 'priority' or 'lora_admin'"),
        ({"rights": '"priority"'}, "rights should be a valid list"),
        ({"name": '"a b"'}, "name has 1 to 64 letters"),
        ({"name": '"anonymous"'}, "name cannot be anonymous"),
        ({"cache_group": '""'}, "cache_group has 1 to 64 letters"),
        ({"key_sha256": "[]"}, "key_sha256 should"),
        ({"key_sha256": '["abc"]'}, "key_sha256 holds no SHA-256"),
        ({"remember_prompts": "1"}, "remember_prompts should be a valid boolean"),
        ({"priority": "99999999999"}, "priority should be less than"),
    ],
)
def test_each_fault_is_told_in_a_sentence_that_names_tenant_and_field(
    fields: dict[str, str], said: str
) -> None:
    told = faults(table(**fields))
    assert said in told
    assert told.startswith("tenant 1")


def test_what_is_missing_is_named() -> None:
    assert faults('[[tenant]]\nname = "acme"\n') == "tenant 1 (acme): key_sha256 is missing"
    assert faults(f'[[tenant]]\nkey_sha256 = ["{A}"]\n') == "tenant 1: name is missing"


def test_all_faults_are_told_at_once() -> None:
    told = faults(table(priority='"x"', input_policy="1") + table(name='"other"', rights="1"))
    assert len(told.splitlines()) == 3


def test_names_and_keys_belong_to_one_tenant_each() -> None:
    assert "2 tenants are named acme" in faults(table() + table(key_sha256=f'["{B}"]'))
    assert "tenants acme and other have the same key" in faults(table() + table(name='"other"'))
    assert "tenants acme and acme have the same key" in faults(table(key_sha256=f'["{A}", "{A.upper()}"]'))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nobody could use the service"),
        ("tenant = []", "nobody could use the service"),
        ('[tenant]\nname = "acme"\n', "[[tenant]], in two pairs of brackets"),
        ('[[tenants]]\nname = "acme"\n', "tenants has no meaning here; did you mean tenant?"),
        ("[[tenant]\n", "this is not TOML"),
        ("a=" + "[" * 5000, "this is not TOML"),
        ("x = 1" + "0" * 5000, "this is not TOML"),
        ("tenant = [1]", "tenant 1: the table should"),
    ],
)
def test_a_file_of_another_form_is_told_what_to_change(text: str, said: str) -> None:
    assert said in faults(text)


def test_no_sentence_repeats_a_key_that_stands_at_the_wrong_place() -> None:
    secret = new_key("acme").key
    quoted = f'"{secret}"'
    for field in ("key_sha256", "name", "cache_group", "priority", "input_policy", "max_concurrent"):
        assert secret not in faults(table(**{field: quoted}))
    assert secret not in faults(table(key_sha256=f"[{quoted}]"))
    assert secret not in faults(table(rights=f"[{quoted}]"))
    assert secret not in faults(table(key=quoted))


def test_no_holder_shows_its_digests() -> None:
    (holder,) = parse_tenants(table())
    assert A not in repr(holder) and repr(bytes.fromhex(A)) not in repr(holder)


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(TenantsError, match="cannot be read: No such file"):
        read_tenants(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'[[tenant]]\nname = "caf\xe9"\n')
    with pytest.raises(TenantsError, match="is not UTF-8"):
        read_tenants(tmp_path / "latin.toml")


def test_each_line_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(table(priority='"x"') + table(name='"b"', rights="1"))
    with pytest.raises(TenantsError) as refused:
        read_tenants(path)
    assert all(line.startswith(f"{path}: tenant ") for line in str(refused.value).splitlines())
