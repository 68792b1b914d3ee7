"""What a service needs that others can reach: TLS, proxies it believes, pages of other origins."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme

from service.errors import StartError
from service.prompt.renderer import Renderer
from service.settings import Settings, SettingsError, load
from service.web.tls import Certificate
from tests.conftest import Serve, body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until

CHAT = "/v1/chat/completions"
OURS = "https://chat.example.org"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whom the clients here trust."""
    return trustme.CA()


def issue(authority: trustme.CA, folder: Path) -> Certificate:
    """A new certificate and its key, in two files that are always the same."""
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    key.write_bytes(issued.private_key_pem.bytes())
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return Certificate(certificate, key)


@contextmanager
def secure(
    files: Certificate, engine: ScriptedEngine, renderer: Renderer, authority: trustme.CA
) -> Iterator[tuple[Running, httpx.Client]]:
    """A server with TLS, and a client that trusts it."""
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    settings = Settings(tls_cert_file=files.certificate, tls_key_file=files.key, drain_s=2)
    with running(settings, engine, renderer) as server:
        url = f"https://127.0.0.1:{server.port}"
        with httpx.Client(base_url=url, verify=trust, timeout=30) as client:
            yield server, client


def test_streams_and_whole_answers_go_over_tls(
    tmp_path: Path, engine: ScriptedEngine, renderer: Renderer, authority: trustme.CA
) -> None:
    with secure(issue(authority, tmp_path), engine, renderer, authority) as (server, client):
        assert client.post(CHAT, json=body()).status_code == 200
        streamed = client.post(CHAT, json=body(stream=True, max_tokens=300))
        assert streamed.text.count("data: ") > 300 and streamed.text.endswith("data: [DONE]\n\n")
        assert client.post(CHAT, content=b"x" * 100_000, headers={"x": "y" * 70_000}).status_code == 431
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{server.port}/livez")


def test_a_certificate_that_was_renewed_is_used_for_new_connections_and_a_broken_one_is_not(
    tmp_path: Path, engine: ScriptedEngine, renderer: Renderer, authority: trustme.CA
) -> None:
    def serial(port: int) -> str:
        return ssl.get_server_certificate(("127.0.0.1", port))

    files = issue(authority, tmp_path)
    with secure(files, engine, renderer, authority) as (server, _):
        first = serial(server.port)
        issue(authority, tmp_path)
        server.server.renew_certificate()
        second = serial(server.port)
        assert second != first
        files.certificate.write_text("broken")
        server.server.renew_certificate()
        assert serial(server.port) == second


def test_files_that_cannot_be_used_for_tls_end_the_start_in_a_sentence(
    tmp_path: Path, authority: trustme.CA
) -> None:
    files = issue(authority, tmp_path)
    assert files.key is not None
    (tmp_path / "other").mkdir()
    other = issue(authority, tmp_path / "other")
    wrong = {
        Certificate(tmp_path / "none.pem", None): "none.pem: No such file",
        Certificate(files.certificate, other.key): "key values mismatch",
        Certificate(files.certificate, None): "cannot be used for TLS",
        Certificate(files.key, files.certificate): "cannot be used for TLS",
    }
    for certificate, words in wrong.items():
        with pytest.raises(StartError, match=words):
            certificate.check()


def test_an_encrypted_key_is_told_and_asks_nobody(tmp_path: Path, authority: trustme.CA) -> None:
    from cryptography.hazmat.primitives import serialization as form

    files = issue(authority, tmp_path)
    assert files.key is not None
    key = form.load_pem_private_key(files.key.read_bytes(), None)
    locked = form.BestAvailableEncryption(b"secret")
    files.key.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, locked))
    with pytest.raises(StartError, match="the key is encrypted"):
        files.check()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TLS_KEY_FILE", "key.pem", "needs TWOPHASE_TLS_CERT_FILE"),
        ("TRUSTED_PROXIES", "10.0.0.0/8, proxy.local", "TRUSTED_PROXIES"),
        ("TRUSTED_PROXIES", "*", "TRUSTED_PROXIES"),
        ("CORS_ORIGINS", "https://a.example/path", "without a path"),
        ("CORS_ORIGINS", "a.example", "is no origin"),
    ],
)
def test_a_setting_that_cannot_be_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(f"TWOPHASE_{name}", value)
    with pytest.raises(SettingsError, match=words):
        load()


def test_lists_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOPHASE_TRUSTED_PROXIES", "10.0.0.0/8, ::1")
    monkeypatch.setenv("TWOPHASE_CORS_ORIGINS", f"{OURS},http://localhost:3000")
    settings = load()
    assert settings.trusted_proxies == ("10.0.0.0/8", "::1")
    assert settings.cors_origins == (OURS, "http://localhost:3000")


def test_nobodys_word_is_taken_for_an_address_unless_the_operator_names_them(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    forwarded = {"x-forwarded-for": "6.6.6.6, 203.0.113.9", "x-forwarded-proto": "https"}
    caplog.set_level(logging.INFO, "twophase.request")
    for trusted, client in (
        ((), "127.0.0.1"),
        (("127.0.0.1",), "203.0.113.9"),
        (("10.1.0.0/16",), "127.0.0.1"),
    ):
        caplog.clear()
        assert serve(trusted_proxies=trusted).post(CHAT, json=body(), headers=forwarded).status_code == 200
        until(lambda: caplog.messages)
        assert f" client={client} " in caplog.messages[-1]


def ask(client: httpx.Client, origin: str, method: str = "POST") -> httpx.Response:
    """The question a browser asks before it sends a chat request of a page."""
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return client.options(CHAT, headers=headers)


def test_pages_of_other_origins_are_told_nothing_by_default(client: httpx.Client) -> None:
    assert ask(client, OURS).status_code == 405
    response = client.post(CHAT, json=body(), headers={"origin": OURS})
    assert not any(name.startswith("access-control") for name in response.headers)


def test_pages_of_a_named_origin_may_call_and_read_what_is_told(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(f'[[tenant]]\nname = "a"\nkey_sha256 = ["{"0" * 64}"]\n')
    client = serve(cors_origins=[OURS], tenants_file=file)
    asked = ask(client, OURS)
    assert asked.status_code == 200, "no key is needed to ask"
    assert asked.headers["access-control-allow-origin"] == OURS
    assert "authorization" in asked.headers["access-control-allow-headers"]
    refused = client.post(CHAT, json=body(), headers={"origin": OURS})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == OURS, "so that the page can read why"
    assert "x-request-id" in refused.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in {*asked.headers, *refused.headers}


@pytest.mark.parametrize(
    "origin", ["https://evil.example", f"{OURS}.evil.example", "null", "http://chat.example.org"]
)
def test_pages_of_other_origins_are_refused_in_the_one_shape(serve: Serve, origin: str) -> None:
    client = serve(cors_origins=[OURS])
    asked = ask(client, origin)
    assert asked.status_code == 403 and asked.json()["error"]["code"] == "not_allowed"
    assert "access-control-allow-origin" not in asked.headers and asked.headers["x-request-id"]
    assert "access-control-allow-origin" not in client.get("/v1/models", headers={"origin": origin}).headers


def test_any_origin_is_any_origin_and_never_with_credentials(serve: Serve) -> None:
    client = serve(cors_origins=["*"])
    for response in (ask(client, "https://a.example"), client.get("/v1/models", headers={"origin": "null"})):
        assert response.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in response.headers


def test_a_stream_for_another_origin_is_whole(serve: Serve) -> None:
    client = serve(cors_origins=[OURS])
    response = client.post(CHAT, json=body(stream=True), headers={"origin": OURS})
    assert response.headers["access-control-allow-origin"] == OURS
    assert response.text.endswith("data: [DONE]\n\n")
