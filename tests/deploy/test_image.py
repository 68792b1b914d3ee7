"""The images, as far as they can be held to the project without an engine that builds them."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from service.settings import PREFIX, Settings
from service.web.authenticate import PROBES
from tests.deploy.dockerfile import DOCKERFILE, ROOT, Stage, build, lineage, sent, stages

TARGETS = ("cpu", "cuda")
# What Debian's smallest image has, since apt and Python themselves need it.
IN_EVERY_IMAGE = {"libc", "libm", "libgcc_s", "libpthread", "libstdc++", "libdl", "librt", "libz"}
PACKAGES = {"libnuma": "libnuma1"}
TAG = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?")


@pytest.fixture(scope="module")
def written() -> dict[str, Stage]:
    return stages(DOCKERFILE.read_text())


def environment(written: dict[str, Stage], target: str) -> dict[str, str]:
    texts = [text for stage in lineage(written, target) for text in stage.all("ENV")]
    return dict(pair.split("=", 1) for text in texts for pair in text.split())


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    said = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (0, "")


def test_what_images_begin_with_is_pinned(written: dict[str, Stage]) -> None:
    bases = [stage.base for stage in written.values() if stage.base not in written]
    assert bases
    assert all(TAG.fullmatch(base) for base in bases), bases


@pytest.mark.parametrize("target", TARGETS)
def test_packages_are_installed_as_make_installs_them(written: dict[str, Stage], target: str) -> None:
    (run,) = written[f"packages-{target}"].all("RUN")
    assert f"TWOPHASE_DEVICE={target} python3.11 requirements/install.py --venv .venv" in run
    assert "requirements/install.py --venv $(VENV)" in (ROOT / "Makefile").read_text()
    assert f"--from=packages-{target} /opt/twophase/ ./" in written[target].all("COPY")[0]


@pytest.mark.parametrize("target", [*TARGETS, "loadtest"])
def test_an_image_does_not_run_as_root(written: dict[str, Stage], target: str) -> None:
    assert [stage.all("USER") for stage in lineage(written, target)][-1] == ["10001"]
    created = " ".join(text for stage in lineage(written, target) for text in stage.all("RUN"))
    assert "useradd --uid 10001" in created


@pytest.mark.parametrize("target", TARGETS)
def test_the_service_is_the_first_process_and_gets_the_signals(
    written: dict[str, Stage], target: str
) -> None:
    whole = list(lineage(written, target))
    (entry,) = [text for stage in whole for text in stage.all("ENTRYPOINT")]
    (command,) = [text for stage in whole for text in stage.all("CMD")]
    assert json.loads(entry) + json.loads(command) == ["twophase", "serve"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_variable_of_ours_is_a_setting(written: dict[str, Stage], target: str) -> None:
    ours = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment(written, target).items()
        if name.startswith(PREFIX)
    }
    settings = Settings(allow_anonymous=True, **ours)  # type: ignore[arg-type]
    assert (settings.host, settings.device) == ("0.0.0.0", target)


@pytest.mark.parametrize("target", TARGETS)
def test_the_health_check_asks_a_route_that_needs_no_key_at_the_port_of_the_image(
    written: dict[str, Stage], target: str
) -> None:
    (check,) = [text for stage in lineage(written, target) for text in stage.all("HEALTHCHECK")]
    program = json.loads(check.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    ast.parse(program[2])
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", program[2])[0]
    assert path in PROBES
    assert port == environment(written, target)["TWOPHASE_PORT"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_written_at_run_time_goes_to_the_volume(written: dict[str, Stage], target: str) -> None:
    (volume,) = [text for stage in lineage(written, target) for text in stage.all("VOLUME")]
    variables = environment(written, target)
    for name in ("HOME", "XDG_CACHE_HOME", "PYTHONPYCACHEPREFIX", "TWOPHASE_CACHE"):
        assert Path(variables[name]).is_relative_to(volume), name


def test_what_is_copied_makes_the_project_whole(written: dict[str, Stage], tmp_path: Path) -> None:
    image, wheels = tmp_path / "image", tmp_path / "wheels"
    build(written, ["ground", "cpu"], image)
    made = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)]
    subprocess.run(made, cwd=image, check=True, capture_output=True)
    with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
        packed = set(wheel.namelist())
    ours = [path for path in (ROOT / "service").rglob("*") if path.is_file() and sent(path)]
    assert {path.relative_to(ROOT).as_posix() for path in ours} <= packed
    assert "service/web/page/index.html" in packed


def test_the_layer_of_packages_changes_only_with_the_locks(written: dict[str, Stage], tmp_path: Path) -> None:
    build(written, ["ground"], tmp_path)
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in there if path.startswith("service/")} == {"service/__init__.py"}
    assert {"pyproject.toml", "requirements/install.py", "requirements/cpu.lock"} <= there


def test_nothing_else_of_the_repository_can_get_into_a_layer() -> None:
    for name in (".git/config", ".venv/bin/python", "tests/conftest.py", "tenants.toml", "CHANGELOG.md"):
        assert not sent(ROOT / name), name
    assert not sent(ROOT / "service" / "__pycache__" / "app.cpython-311.pyc")
    assert sent(ROOT / "service" / "app.py")


def test_libraries_that_the_kernels_ask_the_system_for_are_in_the_image(written: dict[str, Stage]) -> None:
    site = Path(sysconfig.get_path("platlib"))
    kernels = [*site.glob("vllm/*.so"), *site.glob("torch/lib/libtorch_cpu.so")]
    said = subprocess.run(["ldd", *kernels], capture_output=True, text=True).stdout
    asked = set(re.findall(r"=> /(?:usr/)?lib/[^ ]*/(lib[\w+]+)\.so", said))
    assert asked > {"libc", "libstdc++"}
    installed = " ".join(text for stage in lineage(written, "cpu") for text in stage.all("RUN"))
    for name in asked - IN_EVERY_IMAGE:
        assert PACKAGES[name] in installed.split(), f"{name} is not in the image"
