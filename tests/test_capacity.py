"""How many chats of a shape fit: the capacity route. A real socket, engine scripted."""

from __future__ import annotations

import httpx
import pytest

from tests.conftest import Serve
from tests.serving import Running
from tests.sizes import GROUPED, Sized, refused


@pytest.fixture
def engine(sized: tuple[Sized, Running]) -> Sized:
    return sized[0].renew(4_096, cache=46_592)


@pytest.fixture
def server(sized: tuple[Sized, Running], engine: Sized) -> Running:
    return sized[1]


def test_the_shape_asked_for_is_counted_in_whole_blocks(client: httpx.Client) -> None:
    asked = {"prompt_tokens": 1_038, "output_tokens": 200, "cached_tokens": 0}
    response = client.get("/v1/capacity", params=asked)
    assert response.json() == {
        **asked,
        "context_window": 4_096,
        "kv_bytes_per_token": 131_072,
        "approximate": None,
        "capacity_tokens": 46_592,
        "used_tokens": 0,
        "block_size": 16,
        "fits_window": True,
        "shared_tokens": 0,
        "tokens_per_chat": 1_248,
        "chats_now": 37,
        "chats_idle": 37,
    }


def test_what_runs_now_takes_its_share(client: httpx.Client, engine: Sized) -> None:
    engine.cache_used = 40_000
    told = client.get("/v1/capacity?prompt_tokens=1000&output_tokens=200").json()
    assert (told["used_tokens"], told["chats_now"], told["chats_idle"]) == (40_000, 5, 38)


def test_a_beginning_that_all_share_is_held_once(client: httpx.Client) -> None:
    told = client.get("/v1/capacity?prompt_tokens=1000&output_tokens=200&cached_tokens=900").json()
    assert (told["shared_tokens"], told["tokens_per_chat"]) == (896, 304)
    assert told["chats_idle"] == (46_592 - 896) // 304


def test_a_chat_longer_than_the_window_fits_nowhere(client: httpx.Client) -> None:
    told = client.get("/v1/capacity?prompt_tokens=4000&output_tokens=97").json()
    assert (told["fits_window"], told["chats_now"], told["chats_idle"]) == (False, 0, 0)


@pytest.mark.parametrize(
    ("window", "query", "shape"),
    [
        (4_096, "", (1_024, 256, 0)),
        (200, "", (100, 100, 0)),
        (2, "", (1, 1, 0)),
        (4_096, "prompt_tokens=4000", (4_000, 96, 0)),
        (4_096, "prompt_tokens=4096", (4_096, 1, 0)),
        (4_096, "output_tokens=4000", (96, 4_000, 0)),
        (4_096, "cached_tokens=2000", (2_000, 256, 2_000)),
    ],
)
def test_what_is_not_asked_for_is_chosen_to_fit_the_window(
    client: httpx.Client, engine: Sized, window: int, query: str, shape: tuple[int, int, int]
) -> None:
    engine.window = window
    told = client.get(f"/v1/capacity?{query}").json()
    assert (told["prompt_tokens"], told["output_tokens"], told["cached_tokens"]) == shape


def test_the_operators_default_output_is_the_usual_one(serve: Serve) -> None:
    client = serve(default_output_tokens=77)
    assert client.get("/v1/capacity").json()["output_tokens"] == 77


def test_what_nobody_knows_is_null(client: httpx.Client, engine: Sized) -> None:
    engine.cache, engine.model = 0, {}
    told = client.get("/v1/capacity").json()
    unknown = ("capacity_tokens", "used_tokens", "chats_now", "chats_idle", "kv_bytes_per_token")
    assert [told[name] for name in unknown] == [None] * 5
    assert "configuration" in told["approximate"]


def test_a_formula_that_is_only_nearly_right_says_so(client: httpx.Client, engine: Sized) -> None:
    engine.model = {**GROUPED, "sliding_window": 512}
    assert "512" in client.get("/v1/capacity").json()["approximate"]


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens", "cached_tokens"])
@pytest.mark.parametrize("value", ["x", "1.5", "-1", "", "9" * 20, "9" * 5_000, "true"])
def test_a_query_that_is_no_count_is_refused_by_name(client: httpx.Client, name: str, value: str) -> None:
    message = refused(client.get("/v1/capacity", params={name: value}), "invalid_value", param=name)
    assert name in message and len(message) < 300


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("prompt_tokens=0", "prompt_tokens"),
        ("output_tokens=0", "output_tokens"),
        ("prompt_tokens=100&cached_tokens=101", "cached_tokens"),
    ],
)
def test_counts_no_chat_can_have_are_refused_by_name(client: httpx.Client, query: str, param: str) -> None:
    refused(client.get(f"/v1/capacity?{query}"), "invalid_value", param=param)
