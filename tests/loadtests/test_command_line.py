"""`python -m loadtests` as a newcomer meets it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from loadtests.scenarios import SCENARIOS
from loadtests.workloads import PRESETS
from tests.loadtests.scripted_server import Reply, serving


def loadtests(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    command = [sys.executable, "-m", "loadtests", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


async def _answers(reply: Reply) -> None:
    """A server that knows only OpenAI's own fields, and shows no metrics."""
    if not reply.seen.body:
        await reply.head(kind=b"application/json")
        await reply.raw(b'{"data": [{"id": "theirs"}]}')
    elif "ignore_eos" in reply.seen.body:
        await reply.head(b"400 Bad Request", b"application/json")
        await reply.raw(b'{"error": {"message": "Unknown field ignore_eos"}}')
    elif not reply.seen.body.get("stream"):
        await reply.head(kind=b"application/json")
        await reply.raw(b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}')
    else:
        await reply.head()
        await reply.token()
        await reply.end()


def test_what_runs_outside_locust_never_meets_gevent() -> None:
    """It patches the standard library of the process that imports it, and would patch that of these tests."""
    code = "import sys, loadtests.__main__; sys.exit('gevent' in sys.modules or 'locust' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_names_every_scenario_and_workload() -> None:
    said = loadtests("--help").stdout
    assert all(name in said for name in [*SCENARIOS, *PRESETS])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workload", "chta"], "there are chat"),
        (["--rate", "-1"], "not a positive number"),
        (["--users", "1,x"], "not a positive whole number"),
        (["http://127.0.0.1:9", "--scenario", "drain"], "started here"),
        (["--scenario", "sweep", "--web"], "leave --web out"),
        (["http://127.0.0.1:9"], "nobody answers at http://127.0.0.1:9"),
        (["--slo", "no-such-file.toml"], "no-such-file.toml"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(arguments: list[str], says: str, tmp_path: Path) -> None:
    ended = loadtests(*arguments, "--out", str(tmp_path))
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_run_that_would_take_too_long_is_not_begun(tmp_path: Path) -> None:
    with serving(_answers) as server:
        ended = loadtests(server.url, "--minutes", "1", "--out", str(tmp_path))
    assert ended.returncode == 2
    assert "allow more (--minutes)" in ended.stderr
    assert not list(tmp_path.glob("samples-*"))


def test_a_server_of_another_kind_is_measured_as_well(tmp_path: Path) -> None:
    with serving(_answers) as server:
        ended = loadtests(
            f"{server.url}/v1/",
            "--scenario",
            "closed",
            "--users",
            "1",
            "--seconds",
            "2",
            "--out",
            str(tmp_path),
        )
        asked = [seen.body for seen in server.seen if seen.body.get("stream")]
    assert ended.returncode == 0, ended.stderr
    assert "concurrency 1 user" in ended.stderr
    assert all(body["model"] == "theirs" and "ignore_eos" not in body for body in asked)
    noted = orjson.loads((tmp_path / "run.json").read_bytes())
    assert noted["about"]["load average before and after"]
    assert (tmp_path / "report.html").exists()
