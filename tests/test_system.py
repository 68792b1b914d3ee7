"""Finding programs of the system for tests."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.system import program


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found; apt-get is not in it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_a_program_that_is_there_is_taken(only: Path) -> None:
    there = only / "tool"
    there.write_text("#!/bin/sh\n")
    there.chmod(there.stat().st_mode | stat.S_IXUSR)
    assert program("tool", package="tools") == there


def test_without_one_a_test_is_skipped_and_says_what_to_install(only: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="apt-get install tools"):
        program("tool", package="tools")


def test_where_all_should_be_there_that_is_a_failure(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install tools"):
        program("tool", package="tools")


def test_what_cannot_be_installed_is_told_with_the_reason(
    only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = only / "apt-get"
    broken.write_text("#!/bin/sh\necho 'no package of that name' >&2\nexit 100\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TWOPHASE_TEST_CACHE", str(only / "cache"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("tests.system.SERVICE_POLICY", only / "policy")
    with pytest.raises(pytest.skip.Exception, match="no package of that name"):
        program("tool", package="tools")
    assert not (only / "policy").exists()
