"""LoRA adapters over a real socket, the engine scripted: named by requests, loaded and unloaded by few."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.random_lora import make_lora
from service.app import build
from service.engine.lora import Adapter, folder_fault, weights_fault
from service.errors import InvalidValue, StartError
from service.prompt.renderer import Renderer
from service.settings import Settings, load
from tests.adapters import adapter_folder
from tests.conftest import Serve, body
from tests.scripted import ScriptedEngine
from tests.serving import Running, running, until
from tests.sizes import CHAT, EXPLAIN, said

BASE = "smollm2-135m-instruct"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
RIGHTS = {"admin": 'rights = ["lora_admin"]', "user": 'rights = ["explain_text", "priority"]'}

Ask = Callable[..., httpx.Response]


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-of-{name}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that adapters may be loaded from; a good one, and some that are none."""
    made = tmp_path / "adapters"
    for name in ("good", "deep/other", "no-weights", "no-config", "no-json", "no-rank"):
        adapter_folder(made / name)
    (made / "no-weights" / "adapter_model.safetensors").unlink()
    (made / "no-config" / "adapter_config.json").unlink()
    (made / "no-json" / "adapter_config.json").write_text("{")
    (made / "no-rank" / "adapter_config.json").write_text("[]")
    return made


@pytest.fixture
def settings(tmp_path: Path, folder: Path) -> Settings:
    """Two adapters from the start, and two tenants, one of whom may change that."""
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(
        "\n".join(
            f'[[tenant]]\nname = "{name}"\nkey_sha256 = '
            f'["{hashlib.sha256(f"key-of-{name}".encode()).hexdigest()}"]\n{rest}'
            for name, rest in RIGHTS.items()
        )
    )
    named = {name: adapter_folder(tmp_path / "named" / name) for name in ("sql", "law")}
    return Settings(lora=named, lora_folder=folder, tenants_file=tenants, drain_s=2)


@pytest.fixture
def server(settings: Settings, engine: ScriptedEngine, renderer: Renderer) -> Iterator[Running]:
    with running(settings, engine, renderer) as server:
        yield server


@pytest.fixture
def ask(client: httpx.Client) -> Ask:
    """POST as a tenant."""

    def post(path: str, tenant: str = "user", **fields: Any) -> httpx.Response:
        return client.post(path, json=fields, headers=bearer(tenant))

    return post


def listed(client: httpx.Client) -> list[str]:
    """The names in `/v1/models`."""
    return [card["id"] for card in client.get("/v1/models", headers=bearer("user")).json()["data"]]


def refusal(response: httpx.Response, status: int) -> dict[str, str]:
    """The error of a refusal, which names no path of the server's."""
    assert response.status_code == status, response.text
    assert "/tmp" not in response.text and "pytest" not in response.text
    return dict(response.json()["error"])


def test_adapters_of_the_settings_are_listed_with_their_parent(client: httpx.Client) -> None:
    cards = client.get("/v1/models", headers=bearer("user")).json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [(BASE, None), ("sql", BASE), ("law", BASE)]
    assert client.get("/v1/models/sql", headers=bearer("user")).json() == cards[1]
    assert cards[1]["max_model_len"] == cards[0]["max_model_len"] == 1024


def test_a_request_that_names_an_adapter_is_answered_with_it_and_by_its_name(
    ask: Ask, engine: ScriptedEngine
) -> None:
    answer = ask(CHAT, **body(model="law")).json()
    assert answer["model"] == "law"
    assert answer["choices"][0]["message"]["content"] == "law law law law "
    assert ask(CHAT, **body(model=BASE)).json()["choices"][0]["message"]["content"] == "word " * 4
    assert [work.adapter and work.adapter.name for work in engine.started] == ["law", None]


def test_every_chunk_of_a_stream_has_the_adapters_name(ask: Ask) -> None:
    lines = ask(CHAT, **body(model="sql", stream=True)).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert len(chunks) == 4 and {chunk["model"] for chunk in chunks} == {"sql"}


def test_a_text_that_goes_on_takes_an_adapters_name(ask: Ask, engine: ScriptedEngine) -> None:
    answer = ask("/v1/completions", model="sql", prompt="The ferry", max_tokens=2).json()
    assert (answer["model"], answer["choices"][0]["text"]) == ("sql", "sql sql ")
    assert refusal(ask("/v1/completions", model="sqk", prompt="The ferry"), 404)["code"] == "model_not_found"


def test_an_unknown_name_is_404_and_is_told_which_there_are(ask: Ask, client: httpx.Client) -> None:
    for response in (
        ask(CHAT, **body(model="sqk")),
        ask(EXPLAIN, **body(model="sqk")),
        ask("/tokenize", prompt="a", model="sqk"),
        client.get("/v1/models/sqk", headers=bearer("user")),
    ):
        error = refusal(response, 404)
        assert error["code"] == "model_not_found"
        assert error["message"] == f"There is no model sqk here; this service has {BASE}, sql, law."


def test_dry_runs_take_an_adapters_name(ask: Ask) -> None:
    assert ask(EXPLAIN, **body(model="sql")).json()["model"] == "sql"
    messages = body()["messages"]
    assert ask("/tokenize", messages=messages, model="sql").json()["count"] > 0
    assert ask("/tokenize", prompt="a", model="sql").status_code == 200
    assert ask("/detokenize", tokens=[1000], model="sql").status_code == 200


def test_no_adapter_finds_what_another_has_cached_and_none_is_told_so(
    ask: Ask, engine: ScriptedEngine
) -> None:
    talk = body(messages=[said("system", 40), said("user", 40)])

    def forecast(model: str) -> int:
        return int(ask(CHAT, **{**talk, "model": model}).json()["phases"]["cache"]["forecast_tokens"])

    assert [forecast(model) for model in (BASE, "sql", "law")] == [0, 0, 0]
    assert all(forecast(model) > 64 for model in (BASE, "sql", "law"))
    salts = [work.cache_salt for work in engine.started]
    assert len(set(salts)) == 3 and salts[:3] == salts[3:]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_who_has_not_the_right_changes_nothing(
    ask: Ask, client: httpx.Client, serve: Serve, path: str
) -> None:
    error = refusal(ask(path, lora_name="sql", lora_path="good", load_inplace=True), 403)
    assert error["code"] == "not_allowed" and "lora_admin" in error["message"]
    anonymous = serve().post(path, json={"lora_name": "sql", "lora_path": "good"})
    assert "TWOPHASE_TENANTS_FILE" in refusal(anonymous, 403)["message"]
    assert listed(client) == [BASE, "sql", "law"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
def test_without_a_folder_nobody_loads_and_what_to_set_is_told(
    settings: Settings, serve: Serve, path: str
) -> None:
    client = serve(tenants_file=settings.tenants_file)
    given = {"lora_name": "sql", "lora_path": "good"}
    error = refusal(client.post(path, json=given, headers=bearer("admin")), 400)
    assert error["code"] == "unsupported_parameter" and "TWOPHASE_LORA_FOLDER" in error["message"]


def test_an_adapter_is_loaded_served_and_unloaded(
    ask: Ask, client: httpx.Client, engine: ScriptedEngine
) -> None:
    loaded = ask(LOAD, "admin", lora_name="new", lora_path="good")
    assert loaded.status_code == 200
    assert loaded.json() == client.get("/v1/models/new", headers=bearer("user")).json()
    assert ask(CHAT, **body(model="new")).json()["choices"][0]["message"]["content"].startswith("new new")
    unloaded = ask(UNLOAD, "admin", lora_name="new", lora_int_id=7)
    assert unloaded.json() == {"id": "new", "object": "model", "deleted": True}
    refusal(ask(CHAT, **body(model="new")), 404)
    until(lambda: len(engine.adapters) == 2)
    refusal(ask(UNLOAD, "admin", lora_name="new"), 404)


def test_a_path_may_be_whole_where_it_lies_in_the_folder(ask: Ask, folder: Path) -> None:
    assert ask(LOAD, "admin", lora_name="a", lora_path=str(folder / "good")).status_code == 200
    assert ask(LOAD, "admin", lora_name="b", lora_path="deep/../deep/other").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        ".",
        "..",
        "good/..",
        "../named/sql",
        "good/../../named/sql",
        "{outside}",
        "/etc",
        "~",
        "link",
        "loop",
        "good/adapter_config.json",
        "none",
        "good\0",
        "x" * 1000,
        "https://example.org/adapter",
    ],
)
def test_no_path_leads_out_of_the_folder(
    ask: Ask, engine: ScriptedEngine, folder: Path, tmp_path: Path, path: str
) -> None:
    (folder / "link").symlink_to(tmp_path / "named" / "sql")
    (folder / "loop").symlink_to(folder / "loop")
    given = path.replace("{outside}", str(tmp_path / "named" / "sql"))
    response = ask(LOAD, "admin", lora_name="new", lora_path=given)
    assert response.status_code == 400 and response.json()["error"]["param"] == "lora_path"
    assert "is no folder inside" in response.json()["error"]["message"]
    assert len(engine.adapters) == 2


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("no-weights", "there is no adapter_model.safetensors"),
        ("no-config", "there is no adapter_config.json"),
        ("no-json", "adapter_config.json is no JSON"),
        ("no-rank", "names no rank"),
    ],
)
def test_what_is_no_adapter_is_refused_by_what_it_lacks(ask: Ask, path: str, said: str) -> None:
    error = refusal(ask(LOAD, "admin", lora_name="new", lora_path=path), 400)
    assert error["param"] == "lora_path" and said in error["message"]


def test_what_the_engine_does_not_take_leaves_the_name_free(ask: Ask, engine: ScriptedEngine) -> None:
    engine.adapter_refusal = InvalidValue("The engine cannot use this adapter.", param="lora_path")
    refusal(ask(LOAD, "admin", lora_name="new", lora_path="good"), 400)
    refusal(ask(LOAD, "admin", lora_name="sql", lora_path="good", load_inplace=True), 400)
    engine.adapter_refusal = None
    assert ask(CHAT, **body(model="sql")).status_code == 200
    assert ask(LOAD, "admin", lora_name="new", lora_path="good").status_code == 200
    numbers = [adapter.number for adapter in engine.adapters.values()]
    assert numbers == [1, 2, 5], "a number whose load has failed is not used again"


@pytest.mark.parametrize("name", [BASE, "sql", "-x", "a b", "a@2", "ä", "x" * 65, "../x", ""])
def test_names_that_are_taken_or_none_are_refused(ask: Ask, client: httpx.Client, name: str) -> None:
    error = refusal(ask(LOAD, "admin", lora_name=name, lora_path="good"), 400)
    assert error["param"] == "lora_name"
    assert listed(client) == [BASE, "sql", "law"]


def test_the_model_itself_is_not_unloaded(ask: Ask) -> None:
    assert refusal(ask(UNLOAD, "admin", lora_name=BASE), 400)["param"] == "lora_name"


@pytest.mark.parametrize("given", [{}, {"lora_name": "x"}, {"lora_name": "x", "lora_path": 3}])
def test_a_body_that_is_none_is_refused_by_field(ask: Ask, given: dict[str, Any]) -> None:
    assert refusal(ask(LOAD, "admin", **given), 400)["param"] in ("lora_name", "lora_path")
    more = {"lora_name": "x", "lora_path": "good"}
    assert refusal(ask(LOAD, "admin", **more, is_3d_lora_weight=True), 400)["param"] == "is_3d_lora_weight"
    known = ask(LOAD, "admin", **more, is_3d_lora_weight=False, colour="red")
    assert known.headers["x-ignored-params"] == "colour"


def test_an_adapter_stays_in_the_engine_until_its_last_answer_has_ended(
    ask: Ask, engine: ScriptedEngine, server: Running
) -> None:
    engine.script("one ", 1.0, "two ")
    answers: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: answers.append(ask(CHAT, **body(model="law"))))
    thread.start()
    until(lambda: engine.started)
    assert ask(UNLOAD, "admin", lora_name="law").status_code == 200
    refusal(ask(CHAT, **body(model="law")), 404)
    assert len(engine.adapters) == 2, "the engine still has it"
    thread.join()
    assert answers[0].json()["choices"][0]["message"]["content"] == "one two "
    until(lambda: len(engine.adapters) == 1)


def test_a_client_that_leaves_keeps_no_adapter(
    ask: Ask, client: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.script("one ", 30.0, "two ")
    with client.stream("POST", CHAT, json=body(model="law", stream=True), headers=bearer("user")) as stream:
        lines = stream.iter_lines()  # named, because httpx closes the connection with its iterator
        next(lines)
        assert ask(UNLOAD, "admin", lora_name="law").status_code == 200
    until(lambda: len(engine.adapters) == 1)
    assert len(engine.aborted) == 1


def test_replacing_an_adapter_changes_answers_and_caches_and_needs_to_be_wished(
    ask: Ask, client: httpx.Client, engine: ScriptedEngine
) -> None:
    ask(CHAT, **body(model="sql"))
    error = refusal(ask(LOAD, "admin", lora_name="sql", lora_path="good"), 400)
    assert "load_inplace" in error["message"]
    replaced = ask(LOAD, "admin", lora_name="sql", lora_path="good", load_inplace=True)
    assert replaced.status_code == 200
    assert sorted(listed(client)) == sorted([BASE, "sql", "law"])
    assert "sql@2" in ask(CHAT, **body(model="sql")).json()["choices"][0]["message"]["content"]
    old, new = engine.started
    assert old.cache_salt != new.cache_salt
    until(lambda: sorted(adapter.identity for adapter in engine.adapters.values()) == ["law", "sql@2"])


def test_no_more_are_loaded_than_the_engine_has_places_for(ask: Ask, engine: ScriptedEngine) -> None:
    for name in ("three", "four"):
        assert ask(LOAD, "admin", lora_name=name, lora_path="good").status_code == 200
    error = refusal(ask(LOAD, "admin", lora_name="five", lora_path="good"), 400)
    assert "(4)" in error["message"] and "max_loras" in error["message"]
    ask(UNLOAD, "admin", lora_name="three")
    until(lambda: len(engine.adapters) == 3)
    assert ask(LOAD, "admin", lora_name="five", lora_path="good").status_code == 200


def test_adapters_make_no_series(ask: Ask, client: httpx.Client) -> None:
    def series() -> set[str]:
        page = client.get("/metrics", headers=bearer("user")).text
        return {line.rpartition(" ")[0] for line in page.splitlines() if line.startswith("twophase_")}

    before = series()
    ask(LOAD, "admin", lora_name="quite-new", lora_path="good")
    assert ask(CHAT, **body(model="quite-new")).status_code == 200
    assert series() == before


def test_settings_name_adapters_as_json_or_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "twophase.toml"
    file.write_text('lora_folder = "/more"\n[lora]\nsql = "/adapters/sql"\n')
    monkeypatch.setenv("TWOPHASE_CONFIG", str(file))
    assert load().lora == {"sql": Path("/adapters/sql")}
    monkeypatch.setenv("TWOPHASE_LORA", '{"law": "/adapters/law"}')
    assert "law" in load().lora
    assert load().adapter_places > len(load().lora) > 0


def test_without_adapters_the_engine_has_no_places_for_them() -> None:
    assert Settings().adapter_places == 0


@pytest.mark.parametrize(
    ("name", "path", "said"),
    [
        ("sql", "nowhere", "TWOPHASE_LORA: sql: .*nowhere holds no LoRA adapter: there is no adapter_config"),
        ("sql", "adapters/no-weights", "there is no adapter_model.safetensors"),
        (BASE, "adapters/good", "is the model's own name"),
        ("a b", "adapters/good", "cannot be a name"),
    ],
)
def test_a_bad_adapter_in_the_settings_stops_the_start_with_a_sentence(
    renderer: Renderer, folder: Path, tmp_path: Path, name: str, path: str, said: str
) -> None:
    with pytest.raises(StartError, match=said):
        build(Settings(lora={name: tmp_path / path}), ScriptedEngine(), renderer)


def test_a_folder_that_is_none_stops_the_start(renderer: Renderer, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="TWOPHASE_LORA_FOLDER=.*there is no such folder"):
        build(Settings(lora_folder=tmp_path / "nowhere"), ScriptedEngine(), renderer)


def test_an_adapter_of_the_settings_that_the_engine_does_not_take_stops_the_start(
    settings: Settings, engine: ScriptedEngine, renderer: Renderer
) -> None:
    engine.adapter_refusal = InvalidValue("Its rank is too high.")
    with running(settings, engine, renderer, wait=False) as server:
        until(lambda: server.server.failure)
    assert isinstance(server.server.failure, StartError)
    assert "TWOPHASE_LORA: sql" in str(server.server.failure)
    assert "Its rank is too high." in str(server.server.failure)


def test_weights_for_another_model_are_known_by_their_width(tmp_path: Path) -> None:
    folder = make_lora(tmp_path / "x", hidden=32)
    assert folder_fault(folder) is None
    assert weights_fault(folder, 32) is None and weights_fault(folder, None) is None
    assert weights_fault(folder, 64) == "it was made for a model 32 wide, and this one is 64"
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert weights_fault(folder, 32) == "adapter_model.safetensors is damaged"
    path.unlink()
    assert weights_fault(folder, 32) is None, "weights in another form are the engine's to judge"


@pytest.mark.engine
def test_the_engines_own_metric_names_adapters_in_one_order() -> None:
    """It makes a series of each list, and lists are in the order of arrival."""
    from vllm.v1.metrics.stats import SchedulerStats

    from service.engine.vllm.load import LoadKeeper

    lists = set()
    for names in itertools.permutations(("sql", "law", "art")):
        counts = dict.fromkeys(names, 1)
        stats = SchedulerStats(waiting_lora_adapters=dict(counts), running_lora_adapters=counts)
        LoadKeeper().record(stats, None)
        lists |= {tuple(stats.waiting_lora_adapters), tuple(stats.running_lora_adapters)}
    assert lists == {("art", "law", "sql")}


def test_each_load_of_a_name_has_an_identity_of_its_own() -> None:
    first, second = (Adapter("sql", number, Path("/x"), version) for number, version in ((1, 1), (4, 2)))
    assert (first.identity, second.identity) == ("sql", "sql@2")
