"""The service on Ray Serve: a config of `deploy/ray` on this machine, with what a measurement changes."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml  # type: ignore[import-untyped]

from bench.child import ROOT, BenchError, Child, free_port

VENV = ROOT / ".venv-ray"
CONFIG = ROOT / "deploy" / "ray" / "one-node.yaml"
CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
STARTS_S = 400  # two engines one after the other on two cores
SMALL_ENGINE = '{"kv_cache_memory_bytes": 67108864, "max_num_seqs": 16}'


def install() -> None:
    """Make the environment with Ray, or find it made.

    Raises:
        BenchError: it cannot be made; the message says why.
    """
    command = [sys.executable, str(ROOT / "requirements" / "install.py"), "--venv", str(VENV), "--ray"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(done.stderr.strip())


@dataclass(frozen=True)
class Fleet:
    """Replicas behind one address."""

    url: str
    child: Child
    web: httpx.Client  # one for all: to make one takes longer than to ask

    def replicas(self) -> dict[str, str]:
        """The name of each replica that is alive, and where its metrics are; as Prometheus is told."""
        groups = self.web.get(f"{self.url}/targets/replicas").raise_for_status().json()
        return {group["labels"]["replica"]: f"http://{group['targets'][0]}" for group in groups}

    def sums(self, *names: str) -> dict[str, dict[str, float]]:
        """For each replica what metrics of these names add up to."""
        return {replica: self._sums(address, names) for replica, address in self.replicas().items()}

    def processes(self) -> dict[str, psutil.Process]:
        """The process of each replica: the one that listens where its metrics are."""
        ports = {int(address.rpartition(":")[2]): name for name, address in self.replicas().items()}
        return {
            ports[at.laddr.port]: psutil.Process(at.pid)
            for at in psutil.net_connections("tcp")
            if at.status == psutil.CONN_LISTEN and at.pid and at.laddr and at.laddr.port in ports
        }

    def wait_for(self, replicas: int, within_s: float = STARTS_S) -> None:
        """Returns when so many are alive."""
        until_s = time.monotonic() + within_s
        while self._alive() != replicas:
            if time.monotonic() > until_s or not self.child.running:
                raise BenchError(f"not {replicas} replicas in time\n{self.child.last_words()}")
            time.sleep(1)

    def _sums(self, address: str, names: Sequence[str]) -> dict[str, float]:
        found = dict.fromkeys(names, 0.0)
        for line in self.web.get(f"{address}/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            for name in names:
                if series == name or series.startswith(f"{name}{{"):
                    found[name] += float(value)
        return found

    def _alive(self) -> int:
        try:
            return len(self.replicas())
        except httpx.HTTPError:
            return 0


@contextmanager
def running(
    model: Path, replica: Mapping[str, Any], *, engine_args: str = SMALL_ENGINE, **settings: str
) -> Iterator[Fleet]:
    """A fleet for as long as the block lasts, ready with its least number of replicas.

    `replica` replaces options of the deployment in the config, one level deep.
    """
    folder = Path(tempfile.mkdtemp(prefix="tp-"))  # short: Ray puts sockets below it
    port = free_port()
    config = _config(port, replica)
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    environ = {
        "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        CALLBACK: "deploy.ray.edge.middlewares",
        "RAY_ADDRESS": "local",  # never somebody's cluster
        "RAY_TMPDIR": str(folder),
        "RAY_SERVE_COLLECT_AUTOSCALING_METRICS_ON_HANDLE": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # Ray's default, 15, starves them where others use the machine too
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(100 * 2**20),
        "TWOPHASE_MODEL": str(model),
        "TWOPHASE_ENGINE_ARGS": engine_args,
        "TWOPHASE_SLO_TTFT_MS": "600000",  # nobody is refused for a busy machine
        "TWOPHASE_PUBLIC_METRICS": "1",
        **settings,
    }
    child = Child([str(VENV / "bin" / "serve"), "run", str(folder / "serve.yaml")], environ, folder / "log")
    try:
        with httpx.Client(timeout=10) as web:
            fleet = Fleet(f"http://127.0.0.1:{port}", child, web)
            fleet.wait_for(_least(config))
            yield fleet
    finally:
        child.ask_to_end()
        child.end()
        shutil.rmtree(folder, ignore_errors=True)


def _config(port: int, replica: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    config["http_options"]["port"] = port
    (ours,) = (it for it in config["applications"] if it["name"] == "twophase")
    ours["args"]["metrics_port"] = port + 1
    (deployment,) = ours["deployments"]
    for name, value in copy.deepcopy(dict(replica)).items():
        if value is None:
            deployment.pop(name, None)
        else:
            old = deployment.get(name)
            deployment[name] = {**old, **value} if isinstance(old, dict) else value
    return config


def _least(config: Mapping[str, Any]) -> int:
    (ours,) = (it for it in config["applications"] if it["name"] == "twophase")
    return int(ours["deployments"][0]["autoscaling_config"]["min_replicas"])
