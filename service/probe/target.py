"""The server that is probed: where it is, what it serves, and its refusals in words."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from service.errors import shown
from service.probe.trouble import Impatience, ProbeError

CONNECT_S = 10
LONGEST_MESSAGE = 600
MOST_MODELS = 8
VISIBLE = re.compile(r"[!-~]+")

Json = dict[str, Any]


class Rejected(ProbeError):
    """The server answered, and said no; `param` is the field it named."""

    def __init__(self, message: str, status: int, said: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.said = said
        self.param = param


class Target:
    """A server under its base URL. Its connection stays open: none is opened while time is taken."""

    def __init__(self, url: str, key: str | None = None) -> None:
        """Raises ProbeError when `url` is none."""
        self.url = base_url(url)
        key = (key or "").strip()
        if key and not VISIBLE.fullmatch(key):
            raise ProbeError("The key has characters that no key has; is it the right one?")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(headers=headers, timeout=CONNECT_S, follow_redirects=False)

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def models(self) -> list[str]:
        """The names it serves.

        Raises:
            ProbeError: it cannot be reached, refuses, or speaks another language.
        """
        with self._in_words():
            response = self._client.get(f"{self.url}/models")
        if response.status_code != 200:
            raise self._rejection(response)
        try:
            return [str(card["id"]) for card in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise ProbeError(
                f"{self.url}/models did not answer as OpenAI's API does; is {self.url} the right base URL?"
            ) from None

    @contextmanager
    def stream(self, body: Json, within_s: float) -> Iterator[httpx.Response]:
        """The response to a chat request, its body still to be read.

        Raises:
            ProbeError: as above; Impatience when nothing comes in time.
        """
        timeout = httpx.Timeout(max(0.1, within_s), connect=CONNECT_S)
        url = f"{self.url}/chat/completions"
        with self._in_words(), self._client.stream("POST", url, json=body, timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                raise self._rejection(response)
            yield response

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectTimeout:
            raise ProbeError(f"{self.url} did not take a connection within {CONNECT_S} s.") from None
        except httpx.TimeoutException:
            raise Impatience(f"{self.url} was silent for too long; --timeout allows more.") from None
        except httpx.ConnectError as exc:
            raise ProbeError(_unreachable(self.url, exc)) from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as exc:
            raise ProbeError(f"{self.url} is no address of a server: {exc}.") from None
        except httpx.HTTPError as exc:
            raise ProbeError(f"The connection to {self.url} broke: {exc or type(exc).__name__}.") from None

    def _rejection(self, response: httpx.Response) -> Rejected:
        said, param = _error(response)
        wait = response.headers.get("retry-after", "some")
        advice = {
            401: "It needs a key: set OPENAI_API_KEY, or use --key.",
            403: "The key has not the right to this.",
            404: "" if "model" in said.lower() else f"Is {self.url} the base URL? It often ends in /v1.",
            429: f"It is busy, or the key's limit is used up; wait {wait} s.",
        }.get(response.status_code, "")
        sentence = f"{self.url} answered {response.status_code}: {said} {advice}".strip()
        return Rejected(sentence, response.status_code, said, param)


def base_url(url: str) -> str:
    """The address under which `/chat/completions` is: `/v1` where the caller names no path.

    Raises:
        ProbeError: there is no host in it.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        host, _ = parts.hostname, parts.port
    except ValueError as exc:
        raise ProbeError(f"{url} is no address of a server: {exc}.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ProbeError(f"{url} is no address of a server; it looks like http://localhost:8000.")
    if parts.username is not None or parts.password is not None:
        raise ProbeError("An address holds no name and password here; a key is --key's, or OPENAI_API_KEY's.")
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def model_missing(name: str, served: list[str]) -> str:
    """A sentence for a model that is not there."""
    return f"There is no model {shown(name)}; this server has {', '.join(map(shown, served[:MOST_MODELS]))}."


def _unreachable(url: str, exc: httpx.ConnectError) -> str:
    if isinstance(exc.__context__, ssl.SSLError) or "SSL" in str(exc):
        return f"{url} has no secure connection that this machine trusts: {exc}."
    return f"Nothing answers at {url} ({exc}). Is the server running? `twophase serve` starts one."


def _error(response: httpx.Response) -> tuple[str, str | None]:
    """What the server says is wrong, and the field it names."""
    try:
        body = response.json()
        error = body.get("error", body)
        if isinstance(error, dict):
            said = error.get("message") or error.get("detail") or response.reason_phrase
            return shown(str(said), LONGEST_MESSAGE), error.get("param")
        return shown(str(error), LONGEST_MESSAGE), None
    except (ValueError, AttributeError):
        return shown(response.text.strip() or response.reason_phrase, 200), None
