"""What is told about the prefix cache, over a real socket, the engine scripted: forecast, miss, text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.prompt.causes import ADVICE
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.conftest import body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until
from tests.sizes import CHAT, EXPLAIN, said

BLOCK = 16  # of the scripted engine
RIGHTS = {"seeing": 'rights = ["explain_text"]', "blind": "", "forgetful": "remember_prompts = false"}
SHARED = {"partner": 'rights = ["explain_text"]\ncache_group = "seeing"'}
TALK = [said("system", 40), said("user", 40)]
EDITED = [TALK[0], {"role": "user", "content": "word " * 20 + "quay" + " word" * 19}]

Ask = Callable[..., dict[str, Any]]


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Tenants with and without the right to text and the wish to be remembered."""
    path = tmp_path / "tenants.toml"
    path.write_text(
        "\n".join(
            f'[[tenant]]\nname = "{name}"\nkey_sha256 = '
            f'["{hashlib.sha256(f"key-of-{name}".encode()).hexdigest()}"]\n{rest}'
            for name, rest in {**RIGHTS, **SHARED}.items()
        )
    )
    return Settings(tenants_file=path, drain_s=2)


@pytest.fixture
def server(settings: Settings, engine: ScriptedEngine, renderer: Renderer) -> Iterator[Running]:
    with running(settings, engine, renderer) as server:
        yield server


@pytest.fixture
def ask(client: httpx.Client) -> Ask:
    """POST as a tenant; the body of the answer."""

    def post(messages: list[Any], tenant: str = "seeing", route: str = CHAT, **fields: Any) -> dict[str, Any]:
        made = body(messages=messages, **fields)
        response = client.post(route, json=made, headers=bearer(tenant))
        assert response.status_code == 200, response.text
        return dict(response.json())

    return post


def test_phases_hold_the_forecast_against_what_the_engine_had(ask: Ask) -> None:
    first, again = ask(TALK), ask(TALK)
    assert first["phases"]["cache"] == {
        "forecast_tokens": 0,
        "cached_tokens": 0,
        "miss": {"index": 0, "message": 0, "cause": "never seen"},
    }
    whole = (again["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK
    assert again["phases"]["cache"] == {
        "forecast_tokens": whole,
        "cached_tokens": 0,  # a scripted engine keeps nothing
        "miss": {"index": whole, "message": 1, "cause": "block boundary"},
    }


def test_a_stream_tells_the_same_in_its_usage_chunk(ask: Ask, client: httpx.Client) -> None:
    ask(TALK)
    asked = body(messages=EDITED, stream=True, stream_options={"include_usage": True})
    lines = client.post(CHAT, json=asked, headers=bearer("seeing")).text.splitlines()
    usage = json.loads(lines[-4].removeprefix("data: "))
    assert usage["choices"] == []
    assert usage["phases"]["cache"]["miss"]["cause"] == "message edited"
    assert usage["phases"]["cache"]["miss"]["message"] == 1


def test_explain_tells_where_the_match_ends_with_its_text_and_advice(ask: Ask) -> None:
    ask(TALK)
    told = ask(EDITED, route=EXPLAIN)
    cache, miss = told["cache"], told["cache"]["miss"]
    assert cache["forecast_tokens"] + cache["uncached_tokens"] == told["prompt_tokens"]
    assert cache["forecast_tokens"] <= miss["index"] < cache["forecast_tokens"] + BLOCK
    assert (miss["cause"], miss["message"]) == ("message edited", 1)
    assert miss["text_before"].startswith(" word word") and miss["text_after"].startswith(" quay word")
    assert cache["advice"] == ADVICE["message edited"]


def test_explain_itself_is_not_remembered(ask: Ask) -> None:
    ask(TALK, route=EXPLAIN)
    assert ask(TALK, route=EXPLAIN)["cache"]["miss"]["cause"] == "never seen"


def test_who_may_not_see_text_is_told_where_and_why_alone(ask: Ask) -> None:
    ask(TALK, "blind")
    told = ask(EDITED, "blind", EXPLAIN)
    assert told["cache"]["miss"]["cause"] == "message edited"
    assert told["cache"]["miss"]["text_before"] is told["cache"]["miss"]["text_after"] is None
    assert "word" not in json.dumps(told) and "quay" not in json.dumps(told)


def test_a_partner_in_the_group_is_not_shown_what_another_tenant_sent(ask: Ask) -> None:
    ask(TALK, "seeing")
    miss = ask(EDITED, "partner", EXPLAIN)["cache"]["miss"]
    assert (miss["cause"], miss["text_before"]) == ("message edited", None)
    assert miss["text_after"].startswith(" quay word")


def test_groups_forecast_from_their_own_past_alone(ask: Ask) -> None:
    ask(TALK, "seeing")
    assert ask(TALK, "blind", EXPLAIN)["cache"]["miss"]["cause"] == "never seen"
    assert ask(TALK, "partner", EXPLAIN)["cache"]["forecast_tokens"] > 0


def test_nothing_is_kept_of_a_tenant_who_is_not_to_be_remembered(ask: Ask, server: Running) -> None:
    assert [ask(TALK, "forgetful")["phases"]["cache"]["forecast_tokens"] for _ in range(2)] == [None, None]
    assert ask(TALK, "forgetful", EXPLAIN)["cache"] is None
    with server.client() as client:
        page = client.get("/metrics", headers=bearer("seeing")).text
    assert "twophase_prompt_memory_bytes 0.0" in page


def test_the_generated_ids_are_remembered_not_the_text(ask: Ask, engine: ScriptedEngine) -> None:
    """The scripted engine says ids that do not spell the text it says: as if it tokenized differently."""
    engine.script("Seven ", "rivers.")
    reply = ask(TALK)["choices"][0]["message"]["content"]
    told = ask([*TALK, {"role": "assistant", "content": reply}, said("user", 5)])
    assert told["phases"]["cache"]["miss"] == {
        "index": ask(TALK)["usage"]["prompt_tokens"],
        "message": 2,
        "cause": "message edited",
    }


def test_history_cut_by_the_service_counts_messages_as_the_caller_does(ask: Ask) -> None:
    talk = [TALK[0], *[said(role, 100 + at) for at in range(3) for role in ("user", "assistant")]]
    ask([*talk, said("user", 5)])
    told = ask(
        [*talk, said("user", 5), said("assistant", 9), said("user", 7)], max_tokens=300, truncation="auto"
    )
    assert told["budget"]["dropped_messages"] == 2
    assert told["phases"]["cache"]["miss"]["cause"] == "history truncated"
    assert told["phases"]["cache"]["miss"]["message"] == 3


def test_predictions_are_none_while_unknown_and_then_in_milliseconds(ask: Ask) -> None:
    unknown = ask(TALK, route=EXPLAIN)["predicted"]
    assert list(unknown) == ["queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "total_ms"]
    assert unknown["queue_ms"] == 0
    assert {unknown[name] for name in list(unknown)[1:]} == {None}
    for _ in range(3):
        ask(TALK, max_tokens=20)
    known = ask(TALK, route=EXPLAIN)["predicted"]
    assert 0 < known["prefill_ms"] < known["ttft_ms"] < known["total_ms"]


def test_misses_and_prediction_errors_are_on_the_metrics_page(ask: Ask, server: Running) -> None:
    for messages in (TALK, EDITED):
        ask(messages)

    def page() -> str:
        with server.client() as client:
            return client.get("/metrics", headers=bearer("seeing")).text

    until(lambda: 'twophase_cache_miss_total{cause="message edited"} 1.0' in page())
    assert 'twophase_cache_miss_total{cause="never seen"} 1.0' in page()
    assert "twophase_prediction_error_ratio_count 1.0" in page()
