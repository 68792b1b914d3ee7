"""From a request's key to its tenant."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from service.admission.keys import new_key
from service.admission.tenants import Tenants
from service.admission.tenants_file import TenantsError
from service.errors import NotAllowed, Unauthenticated


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is, once a test has written it."""
    return tmp_path / "tenants.toml"


def header(key: str) -> list[bytes]:
    """The one header of a request with this key."""
    return [f"Bearer {key}".encode()]


def test_a_key_finds_its_tenant_and_no_other(path: Path) -> None:
    keys = {name: new_key(name) for name in ("a", "b", "c")}
    path.write_text("".join(made.table for made in keys.values()))
    tenants = Tenants(path)
    assert tenants.need_keys
    assert tenants.names == ["a", "b", "c"]
    for name, made in keys.items():
        assert tenants.identify(header(made.key)).name == name


def test_a_tenant_may_have_several_keys(path: Path) -> None:
    one, two = new_key("a"), new_key("a")
    hashes = [made.table.partition("[")[2].partition('"')[2] for made in (one, two)]
    digests = [text.split('"')[-2] for text in hashes]
    path.write_text(f'[[tenant]]\nname = "a"\nkey_sha256 = ["{digests[0]}", "{digests[1]}"]\n')
    tenants = Tenants(path)
    assert tenants.identify(header(one.key)) is tenants.identify(header(two.key))
    assert tenants.names == ["a"]


def test_what_is_nobody_s_key_is_refused_without_repeating_it(path: Path) -> None:
    made = new_key("a")
    path.write_text(made.table)
    tenants = Tenants(path)
    for key in ("wrong-key", made.key[:-1], made.key + "x", made.key.upper(), made.table.split('"')[-2]):
        with pytest.raises(Unauthenticated) as refused:
            tenants.identify(header(key))
        assert key not in refused.value.message
    for values in ([], [b"Bearer caf\xe9"], [b"Bearer \xff\xfe\x00"], header(made.key) * 2):
        with pytest.raises(Unauthenticated):
            tenants.identify(values)


def test_without_a_file_everybody_is_anonymous_whatever_they_send() -> None:
    tenants = Tenants()
    assert not tenants.need_keys
    for values in ([], [b"Bearer any"], [b"Basic x", b"Bearer y"]):
        assert tenants.identify(values).name == "anonymous"
    assert tenants.names == ["anonymous"]
    assert tenants.reload()


def test_the_anonymous_see_their_own_text_and_have_no_right_over_others() -> None:
    anonymous = Tenants().identify([])
    assert anonymous.may("explain_text")
    anonymous.require("explain_text")
    with pytest.raises(NotAllowed, match="lora_admin"):
        anonymous.require("lora_admin")
    assert not anonymous.may("priority")


def test_a_file_that_cannot_be_used_stops_the_start(path: Path) -> None:
    with pytest.raises(TenantsError):
        Tenants(path)


def test_reading_again_takes_new_keys_and_drops_old_ones(path: Path) -> None:
    old, new = new_key("a"), new_key("a")
    path.write_text(old.table)
    tenants = Tenants(path)
    path.write_text(new.table)
    assert tenants.reload()
    assert tenants.identify(header(new.key)).name == "a"
    with pytest.raises(Unauthenticated):
        tenants.identify(header(old.key))


@pytest.mark.parametrize("broken", ["[[tenant]]\nname = 1\n", "", "not toml", None])
def test_a_broken_file_keeps_the_old_tenants_and_says_so(
    path: Path, caplog: pytest.LogCaptureFixture, broken: str | None
) -> None:
    made = new_key("a")
    path.write_text(made.table)
    tenants = Tenants(path)
    path.unlink() if broken is None else path.write_text(broken)
    with caplog.at_level(logging.ERROR):
        assert not tenants.reload()
    assert "the tenants stay as they were" in caplog.text
    assert tenants.identify(header(made.key)).name == "a"


def test_no_secret_is_in_what_can_be_printed(path: Path) -> None:
    made = new_key("a")
    path.write_text(made.table)
    tenants = Tenants(path)
    shown = repr(tenants) + repr(tenants.identify(header(made.key)))
    assert made.key not in shown
    assert made.table.split('"')[-2] not in shown
