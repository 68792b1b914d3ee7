"""A Dockerfile as its instructions, and what a build would copy: read without an engine."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORED = DOCKERFILE.with_name("Dockerfile.dockerignore")


@dataclass(frozen=True, slots=True)
class Stage:
    """One `FROM`: what it begins with, and its instructions in order."""

    name: str
    base: str
    steps: list[tuple[str, str]]

    def all(self, instruction: str) -> list[str]:
        """The arguments of every such instruction."""
        return [text for name, text in self.steps if name == instruction]


def stages(text: str) -> dict[str, Stage]:
    """The stages by name, arguments before the first one filled in."""
    joined = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.M))
    given: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for line in filter(None, joined.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            found[stage] = Stage(stage, re.sub(r"\$\{(\w+)\}", lambda it: given[it[1]], base), [])
        elif found:
            list(found.values())[-1].steps.append((name, rest.strip()))
        else:
            key, _, value = rest.partition("=")
            given[key] = value
    return found


def lineage(all_stages: Mapping[str, Stage], name: str) -> Iterator[Stage]:
    """A stage and those it is built on, the first of all first."""
    stage = all_stages[name]
    if stage.base in all_stages:
        yield from lineage(all_stages, stage.base)
    yield stage


def copies(stage: Stage) -> list[tuple[list[str], str]]:
    """What a stage copies from the repository: sources, and the target folder."""
    words = [shlex.split(text) for text in stage.all("COPY") if "--from" not in text]
    return [(it[:-1], it[-1]) for it in words]


def sent(path: Path) -> bool:
    """Whether the ignore file lets a file of the repository into the build."""
    relative = path.relative_to(ROOT).as_posix()
    chosen = True
    for line in IGNORED.read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!").rstrip("/")
            inside = fnmatch(relative, pattern) or relative.startswith(f"{pattern}/")
            if inside or fnmatch(f"/{relative}", f"*/{pattern.removeprefix('**/')}*"):
                chosen = line.startswith("!") if inside else chosen and not pattern.startswith("**/")
    return chosen


def build(all_stages: Mapping[str, Stage], names: list[str], folder: Path) -> None:
    """Lay into `folder` what the named stages copy from the repository, as a build would."""
    for name in names:
        for sources, target in copies(all_stages[name]):
            for source in sources:
                _copy(ROOT / source, folder / target)


def _copy(source: Path, target: Path) -> None:
    files = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
    base = source if source.is_dir() else source.parent
    for path in filter(sent, files):
        place = target / path.relative_to(base)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
