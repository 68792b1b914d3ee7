"""The tables of README and CONTRIBUTING against the code. `python -m tests.test_docs` writes them anew."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from service import __version__, errors
from service.app import build
from service.budget.ask import Ask
from service.budget.kv import kv_cost
from service.budget.limits import Allowance, in_force
from service.budget.pace import Pace
from service.budget.plan import plan
from service.errors import ContextLengthExceeded, ServiceError
from service.prompt.causes import ADVICE
from service.prompt.renderer import Renderer
from service.settings import PREFIX, Settings
from service.telemetry.metrics import Metrics
from tests.scripted import ScriptedEngine

ROOT = Path(__file__).parent.parent
LAYERS = ("web", "chat", "admission", "telemetry", "prompt", "budget", "engine", "probe")


def tables() -> list[tuple[Path, str, list[str]]]:
    """The file and the name of each table, and the rows that the code says it has."""
    readme, contributing = ROOT / "README.md", ROOT / "CONTRIBUTING.md"
    return [
        (readme, "routes", list(_routes())),
        (readme, "errors", list(_errors())),
        (readme, "settings", list(_settings())),
        (readme, "examples", list(_examples())),
        (readme, "metrics", list(_metrics())),
        (readme, "causes", [f"| {cause} | {advice} |" for cause, advice in ADVICE.items()]),
        (contributing, "modules", list(_modules())),
    ]


def _routes() -> Iterator[str]:
    renderer = cast(Renderer, None)  # routes are declared without one
    app = build(Settings(), ScriptedEngine(), renderer).app
    for route in app.routes:
        if isinstance(route, APIRoute):
            method = next(iter(sorted(route.methods - {"HEAD"})))
            yield f"| `{method} {route.path_format}` | {route.summary} |"


def _errors() -> Iterator[str]:
    found = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ServiceError)]
    rows = {
        (cls.status, cls.code): cls.__doc__
        for cls in found
        if "code" in vars(cls) and cls is not ServiceError
    }
    for (status, code), doc in sorted(rows.items(), key=lambda row: row[0][0]):
        yield f"| {status} | `{code}` | {(doc or '').strip().splitlines()[0].rstrip('.')} |"


def _settings() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        shown = "" if default is None or default == {} else f"`{default}`"
        yield f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |"


def _examples() -> Iterator[str]:
    """The worked examples of the chapter on budgets, as the program works them out."""
    llama = {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "dtype": "float16",
    }
    cost = kv_cost(llama)
    assert cost is not None
    yield (
        "| 32 layers, 8 KV heads of 128, 16 bit: keys and values of 1,200 tokens | "
        f"{cost.bytes_for(1200):,} bytes, {cost.bytes_per_token:,} for each token |"
    )
    limits = in_force(4096, Allowance(output_policy="reject"))
    fits = plan(limits, Ask(200), prompt_tokens=1038, template_tokens=38)
    used = fits.prompt_tokens + fits.max_output_tokens
    yield (
        f"| {fits.content_tokens:,} tokens of content and {fits.template_tokens} of template, 200 of output, "
        f"in a window of 4,096 | {fits.prompt_tokens:,} of prompt, {used:,} in all: it fits |"
    )
    try:
        plan(limits, Ask(200), prompt_tokens=3950, template_tokens=38)
    except ContextLengthExceeded as refused:
        yield f"| A prompt of 3,950 tokens and 200 of output in a window of 4,096 | {refused.message} |"
    pace = Pace(prefill_s=0.8, tokens_per_s=25)
    first, last = f"{pace.first_token_s:.2f} s", f"{pace.total_s(180):.1f} s"
    yield (
        "| 0.8 s of prefill, 25 tokens/s, 180 tokens of output | "
        f"first token after {first}, the last after {last}, streamed or not |"
    )


def _metrics() -> Iterator[str]:
    registry = CollectorRegistry()
    Metrics(registry).doorbook([])
    for family in sorted(registry.collect(), key=lambda family: family.name):
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le", "quantile"})
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        yield f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |"


def _modules() -> Iterator[str]:
    """Every module with the first line of its docstring, in the order in which imports may go."""
    service = ROOT / "service"
    rooms = [sorted((service / layer).rglob("*.py")) for layer in LAYERS]
    top = [service / "__main__.py", service / "app.py"]
    bottom = [service / "settings.py", service / "errors.py"]
    for path in [*top, *(path for room in rooms for path in room), *bottom]:
        if path.name != "__init__.py":
            doc = ast.get_docstring(ast.parse(path.read_text())) or ""
            yield f"| `{path.relative_to(service).as_posix()}` | {doc.splitlines()[0].rstrip('.')} |"


def _rows(file: Path, name: str) -> list[str]:
    inside = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", file.read_text(), re.DOTALL)
    assert inside, f"{file.name} has no table {name}"
    return inside[1].splitlines()[2:]


def test_every_table_says_what_the_code_says() -> None:
    for file, name, rows in tables():
        assert _rows(file, name) == rows, f"write it anew with: python -m tests.test_docs ({name})"


def test_every_setting_says_what_it_is_for() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_changelog_knows_this_version() -> None:
    version = "Unreleased" if ".dev" in __version__ else __version__
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_defence_named_in_the_threat_model_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(tests) > 20
    for path, name in tests:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"
    for module in re.findall(r"`(\w+/\w+\.py)`", text):
        assert (ROOT / "service" / module).is_file(), module


def _write() -> None:
    for file, name, rows in tables():
        pattern = rf"(?<=<!-- {name} -->\n)([^\n]*\n[^\n]*\n).*?(?=<!-- end -->)"
        body = "".join(f"{row}\n" for row in rows)
        before, header, after = re.split(pattern, file.read_text(), flags=re.DOTALL)
        file.write_text(before + header + body + after)


if __name__ == "__main__":
    _write()
