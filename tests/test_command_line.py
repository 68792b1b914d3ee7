"""The command line as a process: what it says when it cannot do its work."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service import __version__


def twophase(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_version_is_printed() -> None:
    assert twophase("--version").stdout == f"twophase {__version__}\n"


def test_help_names_the_commands_and_where_settings_come_from() -> None:
    said = twophase("--help").stdout
    assert "serve" in said and "model" in said and "TWOPHASE_CONFIG" in said


def test_a_mistyped_setting_stops_the_start_in_one_line() -> None:
    done = twophase("serve", TWOPHASE_PROT="1")
    assert done.returncode == 1
    assert done.stderr == "twophase: TWOPHASE_PROT is no setting; did you mean TWOPHASE_PORT?\n"


def test_a_folder_without_a_model_is_named_with_what_is_missing(tmp_path: Path) -> None:
    done = twophase("serve", "--model", str(tmp_path))
    assert done.returncode == 1
    assert f"{tmp_path / 'config.json'}" in done.stderr and "Hugging Face" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_said_before_anything_is_loaded(embedded_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = twophase("serve", "--port", port, "--model", str(embedded_model))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr and "TWOPHASE_PORT" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_engine_argument_stops_the_start_by_name(embedded_model: Path) -> None:
    done = twophase(
        "serve", "--port", "0", "--model", str(embedded_model), TWOPHASE_ENGINE_ARGS='{"max_num_seq": 1}'
    )
    assert done.returncode == 1
    assert "max_num_seq is no vLLM engine argument; did you mean max_num_seqs?" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_model_command_says_where_the_model_is_and_how_big(embedded_model: Path, cache: Path) -> None:
    done = twophase("model", TWOPHASE_CACHE=str(cache))
    assert done.returncode == 0
    assert done.stdout.split() == [str(embedded_model), "273", "MB"]


def test_other_machines_are_not_served_without_keys() -> None:
    done = twophase("serve", "--port", "0", TWOPHASE_HOST="0.0.0.0")
    assert done.returncode == 1
    assert "TWOPHASE_TENANTS_FILE" in done.stderr and "TWOPHASE_ALLOW_ANONYMOUS=1" in done.stderr


@pytest.mark.parametrize("settings", [{}, {"TWOPHASE_HOST": "0.0.0.0"}], ids=["at home", "in an image"])
def test_a_new_key_is_told_to_the_terminal_and_its_table_to_the_output(settings: dict[str, str]) -> None:
    done = twophase("key", "acme", **settings)
    key = done.stderr.split()[-1]
    assert done.returncode == 0 and key.startswith("tp-")
    assert key not in done.stdout
    assert hashlib.sha256(key.encode()).hexdigest() in done.stdout and 'name = "acme"' in done.stdout
    assert twophase("key", "no such name!").returncode == 1
