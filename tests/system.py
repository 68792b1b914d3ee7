"""Programs of the system that tests run: one that is missing is installed where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from filelock import FileLock

SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
NO_SERVICES = "#!/bin/sh\n# Here only while tests install a package.\nexit 101\n"
INSTALL = (
    "apt-get",
    "install",
    "--yes",
    "--quiet=2",
    "--no-install-recommends",
    "--option=DPkg::Lock::Timeout=120",
)


def program(name: str, *, package: str) -> Path:
    """Where a program of a Debian package is. As root on Debian it is installed when missing; elsewhere
    the test is skipped, saying what to install, or fails where `CI=true` says that all must be there."""
    if found := shutil.which(name):
        return Path(found)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        do_without(f"{name} is not installed; on Debian: apt-get install {package}")
    with FileLock(cache_folder() / "apt.lock"):  # another run of the tests may be at it
        said = "" if shutil.which(name) else _install(package)
    if found := shutil.which(name):
        return Path(found)
    do_without(f"{name} is not installed and apt-get cannot install {package}: {said[-300:]}")


def do_without(reason: str) -> NoReturn:
    """Skip, with a sentence saying what to install; where everything should be installed, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def cache_folder() -> Path:
    """The folder for what tests fetch once."""
    folder = Path(os.environ.get("TWOPHASE_TEST_CACHE", "~/.cache/twophase/tests")).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _install(package: str) -> str:
    """The package lists are only fetched when they are missing or too old to be used."""
    with _services_kept_down():
        if (tried := _run(*INSTALL, package)).returncode != 0:
            _run("apt-get", "update", "--quiet=2")
            tried = _run(*INSTALL, package)
    return tried.stderr.strip()


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=240)


@contextmanager
def _services_kept_down() -> Iterator[None]:
    """A test wants the program and not the daemon its package would start. An operator's own policy stays."""
    if SERVICE_POLICY.exists():
        yield
        return
    SERVICE_POLICY.write_text(NO_SERVICES)
    SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICE_POLICY.unlink()
