"""Anything at all, in volume, at a service over the scripted engine: answered, or refused in shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import CHECKS, load_all_checks

from service.app import build
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.hostile import bodies, bodies_of_faces, raw_bodies
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until

CHAT = "/v1/chat/completions"
POSTS = (CHAT, f"{CHAT}/explain", "/tokenize", "/detokenize")
LAST = re.compile(r"data: (\[DONE\]|\{\"type\":\"(message_stop|response\.(completed|incomplete))\".*)\n\n$")
SHAPES = (
    ({"error"}, {"message", "type", "param", "code"}),
    ({"type", "error"}, {"type", "message"}),  # Anthropic's
)
JSON = {"content-type": "application/json"}
MANY = examples(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
load_all_checks()
SAID = [CHECKS.get_one(f"{name}_conformance") for name in ("status_code", "content_type", "response_schema")]
routes = build(Settings(), ScriptedEngine(), cast(Renderer, None)).app  # declared without a tokenizer
schema = schemathesis.openapi.from_dict(routes.openapi())


@pytest.fixture(scope="module")
def server(renderer: Renderer) -> Iterator[Running]:
    """One server for all tests here."""
    with running(Settings(), ScriptedEngine(), renderer) as server:
        yield server
        until(lambda: server.life.in_flight == 0 and server.parts.admission.held == 0)


@pytest.fixture(scope="module")
def web(server: Running) -> Iterator[httpx.Client]:
    """One client of it."""
    with server.client() as client:
        yield client


def sound(response: httpx.Response) -> None:
    """Answered, or refused by the caller's fault, in a shape that every JSON reader reads."""
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        assert LAST.search(response.text), response.text[-300:]
        return
    answer = json.loads(response.content, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    if response.status_code != 200:
        assert (set(answer), set(answer["error"])) in SHAPES
        assert answer["error"]["message"] and len(answer["error"]["message"]) < 1000


@schema.parametrize()
@examples(max_examples=30)
def test_the_service_is_what_it_says_it_is(server: Running, case: Case[Any]) -> None:
    response = case.call_and_validate(base_url=server.url, checks=SAID)  # type: ignore[arg-type]
    if response.status_code >= 500:
        error = response.json()["error"]
        assert (
            error["type"] == "timeout_error" if "code" not in error else error["code"] == "deadline_exceeded"
        )


@MANY
@given(body=bodies(), path=st.sampled_from(POSTS))
def test_fields_of_any_kind_are_answered_or_refused(
    web: httpx.Client, body: dict[str, object], path: str
) -> None:
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    sound(web.post(path, content=raw, headers=JSON))


@MANY
@given(asked=bodies_of_faces())
def test_fields_of_other_faces_are_answered_or_refused(
    web: httpx.Client, asked: tuple[str, dict[str, object]]
) -> None:
    route, body = asked
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    sound(web.post(route, content=raw, headers=JSON))


@MANY
@given(raw=raw_bodies(), path=st.sampled_from(POSTS))
def test_bodies_of_any_kind_are_answered_or_refused(web: httpx.Client, raw: bytes, path: str) -> None:
    sound(web.post(path, content=raw, headers=JSON))


@MANY
@given(
    name=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=40),
    query=st.dictionaries(
        st.sampled_from(["prompt_tokens", "output_tokens", "cached_tokens"]),
        st.integers() | st.text(max_size=20) | st.floats(),
    ),
)
def test_paths_and_queries_of_any_kind_are_answered_or_refused(
    web: httpx.Client, name: str, query: dict[str, object]
) -> None:
    sound(web.get(f"/v1/models/{quote(name)}"))
    params = {key: str(value).encode("utf-8", "replace").decode() for key, value in query.items()}
    sound(web.get("/v1/capacity", params=params))
