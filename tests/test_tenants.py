"""Keys at the door: every route and every spelling of it, and what a tenant's table changes."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from service.errors import EngineUnavailable
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until

CHAT = "/v1/chat/completions"
KEY = "tp-key-of-acme"
HEADERS = {"authorization": f"Bearer {KEY}"}


def table(name: str, key: str, rest: str = "") -> str:
    """A tenant's table."""
    return (
        f'[[tenant]]\nname = "{name}"\nkey_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]\n{rest}\n'
    )


@pytest.fixture
def tenants_file(tmp_path: Path) -> Path:
    """Two tenants; acme has limits."""
    path = tmp_path / "tenants.toml"
    limits = (
        "max_output_tokens = 3\nrequests_per_minute = 100\ntokens_per_minute = 1000\nmax_concurrent = 2\n"
    )
    path.write_text(table("acme", KEY, limits) + table("boss", "tp-boss", 'rights = ["priority"]'))
    return path


@pytest.fixture
def settings(tenants_file: Path) -> Settings:
    """A service with tenants."""
    return Settings(tenants_file=tenants_file, drain_s=2)


@pytest.fixture
def server(settings: Settings, engine: ScriptedEngine, renderer: Renderer) -> Iterator[Running]:
    """A service with tenants, on a real socket."""
    with running(settings, engine, renderer) as server:
        yield server


@pytest.mark.parametrize(
    "path",
    [
        CHAT,
        "/v1/models",
        "/v1/models/x",
        "/version",
        "/metrics",
        "/tokenize",
        "/openapi.json",
        "/nothing",
        "//",
        "/page/",
        "/page/index.html",
        "/page/../v1/models",
        "//livez",
        "/livez/",
        "/LIVEZ",
        "/livez/../v1/models",
        "/livez%2f..%2fv1%2fmodels",
        "/v1/../readyz",
    ],
)
def test_everything_but_the_probes_needs_a_key(server: Running, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        wire.sendall(f"GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".encode())
        received = b"".join(iter(lambda: wire.recv(65_536), b""))
    head, _, content = received.partition(b"\r\n\r\n")
    assert b" 401 " in head.split(b"\r\n")[0], received
    assert b"www-authenticate: Bearer" in head and b"x-request-id" in head
    assert orjson.loads(content)["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/", "/page/main.js"])
def test_probes_and_the_page_need_none(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer caf\xe9",
        b"Basic " + KEY.encode(),
        b"Bearer " + KEY.encode() + b"x",
        b"Bearer " + KEY.upper().encode(),
        b"Bearer " + b"x" * 60_000,
        b"Bearer " + KEY.encode() + b"\r\nAuthorization: Bearer " + KEY.encode(),
    ],
)
def test_what_is_nobodys_key_is_401_and_never_500(server: Running, value: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as wire:
        head = b"GET /v1/models HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
        wire.sendall(head + b"Authorization: " + value + b"\r\n\r\n")
        head, _, content = wire.makefile("rb").read().partition(b"\r\n\r\n")
    assert b" 401 " in head and b"www-authenticate: bearer" in head.lower()
    assert json.loads(content)["error"]["code"] == "invalid_api_key"


def test_the_scheme_may_be_in_lower_case(client: httpx.Client) -> None:
    assert client.get("/v1/models", headers={"authorization": f"bearer {KEY}"}).status_code == 200


def test_a_tenants_own_limit_clamps_and_is_told(client: httpx.Client, engine: ScriptedEngine) -> None:
    response = client.post(CHAT, json=body(max_tokens=50), headers=HEADERS)
    assert response.headers["x-budget-max-output-tokens"] == "3"
    assert response.json()["budget"]["clamped_from"] == 50
    assert engine.started[0].max_output_tokens == 3
    assert engine.started[0].cache_salt and "acme" not in engine.started[0].cache_salt


def test_quota_headers_say_what_is_left_and_what_is_used_up_is_429(client: httpx.Client) -> None:
    first = client.post(CHAT, json=body(), headers=HEADERS)
    assert first.headers["x-ratelimit-limit-requests"] == "100"
    assert first.headers["x-ratelimit-remaining-requests"] == "99"
    for _ in range(60):
        response = client.post(CHAT, json=body(), headers=HEADERS)
        if response.status_code != 200:
            break
    assert response.status_code == 429
    assert response.json()["error"]["code"] == "rate_limit_exceeded"
    assert response.headers["retry-after"].isdigit()
    boss = client.post(CHAT, json=body(), headers={"authorization": "Bearer tp-boss"})
    assert boss.status_code == 200, "another tenant has its own minute"


def test_priority_needs_the_right_to_it(client: httpx.Client) -> None:
    refused = client.post(CHAT, json=body(priority=1), headers=HEADERS)
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "not_allowed"
    boss = {"authorization": "Bearer tp-boss"}
    assert client.post(CHAT, json=body(priority=1), headers=boss).status_code == 200


def test_the_rendered_prompt_is_shown_only_to_whom_may_see_it(client: httpx.Client) -> None:
    explained = client.post(f"{CHAT}/explain", json=body(), headers=HEADERS)
    assert explained.status_code == 200
    assert "<|im_start|>" not in explained.text


def test_a_file_read_again_changes_who_is_let_in(
    server: Running, client: httpx.Client, tenants_file: Path
) -> None:
    tenants_file.write_text(table("new", "tp-new"))
    assert server.parts.tenants.reload()
    assert client.get("/v1/models", headers=HEADERS).status_code == 401
    assert client.get("/v1/models", headers={"authorization": "Bearer tp-new"}).status_code == 200
    tenants_file.write_text("broken [")
    assert not server.parts.tenants.reload()
    assert client.get("/v1/models", headers={"authorization": "Bearer tp-new"}).status_code == 200


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "soon", "9" * 400, ""])
def test_a_deadline_that_is_none_is_named(client: httpx.Client, given: str) -> None:
    response = client.post(CHAT, json=body(), headers={**HEADERS, "x-request-timeout-ms": given})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Timeout-Ms"


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_that_passes_ends_the_answer(
    client: httpx.Client, engine: ScriptedEngine, server: Running, stream: bool
) -> None:
    engine.script("word ", 30.0, "never")
    headers = {**HEADERS, "x-request-timeout-ms": "500"}
    response = client.post(CHAT, json=body(stream=stream), headers=headers)
    assert response.status_code == (200 if stream else 504)
    assert "deadline_exceeded" in response.text and "[DONE]" not in response.text
    until(lambda: server.life.in_flight == 0)
    assert len(engine.aborted) == 1 and server.parts.admission.held == 0


def test_refused_requests_say_what_is_left_too(client: httpx.Client, engine: ScriptedEngine) -> None:
    for _ in range(99):
        client.post(CHAT, content=b"rubbish", headers={**HEADERS, "content-type": "application/json"})
    response = client.post(CHAT, json=body(), headers=HEADERS)
    assert response.status_code == 200 and response.headers["x-ratelimit-remaining-requests"] == "0"
    refused = client.post(CHAT, json=body(), headers=HEADERS)
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["x-ratelimit-limit-requests"] == "100"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert int(refused.headers["x-ratelimit-remaining-tokens"]) > 0


def test_rubbish_counts_as_a_request_and_what_we_cannot_do_does_not(
    client: httpx.Client, engine: ScriptedEngine
) -> None:
    def left(response: httpx.Response) -> str:
        return response.headers["x-ratelimit-remaining-requests"]

    rubbish = ({"content": b"{"}, {"json": body(max_tokens=0)}, {"json": body(messages=[])})
    for sent in rubbish:
        json_type = {"content-type": "application/json"}
        assert client.post(CHAT, headers={**HEADERS, **json_type}, **sent).status_code == 400
    assert left(client.post(CHAT, json=body(), headers=HEADERS)) == "96"
    engine.refusal = EngineUnavailable("gone")
    assert client.post(CHAT, json=body(), headers=HEADERS).status_code == 503
    engine.refusal = None
    assert left(client.post(CHAT, json=body(), headers=HEADERS)) == "95"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (f"{CHAT}/explain", body()),
        ("/tokenize", {"prompt": "Name three rivers."}),
        ("/detokenize", {"tokens": [1]}),
        ("/v1/messages/count_tokens", {"messages": body()["messages"]}),
    ],
)
def test_dry_runs_have_a_minute_of_their_own_with_an_end(
    client: httpx.Client, path: str, asked: dict[str, object]
) -> None:
    json_type = {**HEADERS, "content-type": "application/json"}
    for _ in range(50):
        assert client.post(path, json=asked, headers=HEADERS).status_code == 200
        assert client.post(path, content=b"rubbish", headers=json_type).status_code == 400
    refused = client.post(path, json=asked, headers=HEADERS)
    assert refused.status_code == 429 and refused.headers["retry-after"].isdigit()
    assert "dry runs a minute" in refused.json()["error"]["message"]
    made = client.post(CHAT, json=body(), headers=HEADERS)
    assert made.status_code == 200 and made.headers["x-ratelimit-remaining-requests"] == "99"


def test_a_tenant_without_the_right_gets_no_ids_of_the_rendered_prompt(client: httpx.Client) -> None:
    messages = body()["messages"]
    refused = client.post("/tokenize", json={"messages": messages}, headers=HEADERS)
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "not_allowed"
    own = client.post("/tokenize", json={"prompt": "Name three rivers."}, headers=HEADERS)
    assert own.status_code == 200 and own.json()["count"] > 0


def test_tenants_that_come_later_are_counted_by_their_names_while_there_are_not_too_many(
    server: Running, client: httpx.Client, tenants_file: Path
) -> None:
    def counted(tenant: str) -> bool:
        boss = {"authorization": "Bearer tp-boss"}
        name = f'twophase_tenant_tokens_total{{kind="output",tenant="{tenant}"}}'
        other = f'twophase_tenant_tokens_total{{tenant="{tenant}",kind="output"}}'
        page = client.get("/metrics", headers=boss).text
        return name in page or other in page

    keep = table("boss", "tp-boss")
    tenants_file.write_text(keep + table("later", "tp-later"))
    assert not counted("later")
    server.parts.read_tenants_again()
    assert counted("later")
    for start in (0, 100, 200):
        more = "".join(table(f"t{at}", f"tp-{at}") for at in range(start, start + 30))
        tenants_file.write_text(keep + more)
        server.parts.read_tenants_again()
    assert counted("t29") and not counted("t229"), "the label stays bounded over the life of the process"


def test_every_request_is_counted_by_its_route_and_a_scanner_makes_no_series(client: httpx.Client) -> None:
    boss = {"authorization": "Bearer tp-boss"}

    def series() -> dict[str, float]:
        lines = client.get("/metrics", headers=boss).text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith("twophase_http_requests_total"))
        return {name: float(value) for name, _, value in found}

    before = series()
    for at in range(20):
        client.get(f"/scan/{at}", headers=boss)
        client.patch(f"{CHAT}/{at}", headers=boss)
    client.get("/v1/models/none", headers=boss)
    client.get("/v1/models/none")
    client.post(f"{CHAT}/explain", json=body(), headers=boss)
    after = series()
    assert before.keys() == after.keys()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    grown = {name: value for name, value in grown.items() if "/metrics" not in name}
    assert sorted(grown.values()) == [1, 2, 40], grown
    assert any('route="other"' in name and 'status_class="4xx"' in name for name in grown)
    assert any("explain" in name and 'status_class="2xx"' in name for name in grown)
