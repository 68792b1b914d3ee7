"""LoRA adapters on the real engine: other words, caches apart, and nothing in a folder that ends it."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.random_lora import make_lora
from bench.random_model import make
from tests.real.conftest import Served, serving, start
from tests.serving import until

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
KEY = {"authorization": "Bearer key-of-admin"}
ENGINE = '{"kv_cache_memory_bytes": 33554432, "max_num_seqs": 8}'


@pytest.fixture(scope="module")
def model(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("models") / "one-layer", cache, context_window=1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What may be loaded at run time: good adapters, and those that go wrong at each step of a load."""
    made = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("good", "second", "high-rank", "cut", "not-tensors", "fleeting"), start=7):
        make_lora(made / name, seed)
    make_lora(made / "narrow", 3, hidden=32)
    make_lora(made / "wide", 3, hidden=128)
    config = json.loads((made / "good" / "adapter_config.json").read_text())
    (made / "high-rank" / "adapter_config.json").write_text(json.dumps({**config, "r": 64}))
    weights = (made / "good" / "adapter_model.safetensors").read_bytes()
    (made / "cut" / "adapter_model.safetensors").write_bytes(weights[: len(weights) // 2])
    (made / "not-tensors" / "adapter_model.safetensors").write_bytes(b"\xff" * 4096)
    return made


@pytest.fixture(scope="module")
def served(model: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with two adapters from the start."""
    work = tmp_path_factory.mktemp("served")
    tenants = work / "tenants.toml"
    tenants.write_text(
        f'[[tenant]]\nname = "admin"\nkey_sha256 = ["{hashlib.sha256(b"key-of-admin").hexdigest()}"]\n'
        'rights = ["lora_admin", "explain_text"]\n'
    )
    named = {name: str(make_lora(work / name, seed)) for seed, name in enumerate(("first", "other"), start=1)}
    with serving(
        "--model",
        str(model),
        TWOPHASE_ENGINE_ARGS=ENGINE,
        TWOPHASE_LORA=json.dumps(named),
        TWOPHASE_LORA_FOLDER=str(folder),
        TWOPHASE_TENANTS_FILE=str(tenants),
        TWOPHASE_SLO_TTFT_MS="600000",
    ) as served:
        yield served


@pytest.fixture(scope="module")
def web(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=120, headers=KEY) as client:
        yield client


def answer(web: httpx.Client, model: str, text: str = "Name three rivers.", **fields: Any) -> dict[str, Any]:
    """A greedy answer of a certain length."""
    request = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }
    response = web.post(CHAT, json=request)
    assert response.status_code == 200, response.text
    assert response.json()["model"] == model
    return dict(response.json())


def words(web: httpx.Client, model: str, tokens: int = 16) -> str:
    return str(answer(web, model, max_tokens=tokens)["choices"][0]["message"]["content"])


def listed(web: httpx.Client) -> list[str]:
    return [card["id"] for card in web.get("/v1/models").json()["data"]]


def load(web: httpx.Client, name: str, path: str, **more: Any) -> httpx.Response:
    return web.post(LOAD, json={"lora_name": name, "lora_path": path, **more})


def test_each_adapter_says_other_words_and_says_them_again(web: httpx.Client) -> None:
    names = ("one-layer", "first", "other")
    said = [words(web, name) for name in names]
    assert len(set(said)) == 3
    assert [words(web, name) for name in names] == said


def test_adapters_answer_side_by_side_as_they_do_alone(web: httpx.Client) -> None:
    """On a CPU vLLM gives requests without an adapter the last slot's, which has to stay empty for that."""
    for number in range(4):
        assert load(web, f"more-{number}", "good").status_code == 200
    full = load(web, "too-many", "good")
    assert full.status_code == 400 and "max_loras" in full.json()["error"]["message"]
    names = ("one-layer", "first", "other", "more-3") * 3
    alone = {name: words(web, name) for name in set(names)}
    together: list[tuple[str, str]] = []
    threads = [
        threading.Thread(target=lambda name=name: together.append((name, words(web, name)))) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(together) == len(names)
    assert [(name, said) for name, said in together if said != alone[name]] == []
    for number in range(4):
        assert web.post(UNLOAD, json={"lora_name": f"more-{number}"}).status_code == 200


def test_answers_under_way_are_not_changed_by_what_is_loaded_and_unloaded_meanwhile(
    web: httpx.Client,
) -> None:
    """With fewer slots than adapters a load takes the slot of one in use: its answers go on as another's."""
    names = ("one-layer", "first", "other")
    alone = {name: words(web, name, 400) for name in names}
    together: dict[str, str] = {}

    def ask(name: str) -> None:
        together[name] = words(web, name, 400)

    threads = [threading.Thread(target=ask, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    changes = 0
    while any(thread.is_alive() for thread in threads):
        changes += load(web, "passing", ("good", "second")[changes % 2]).status_code == 200
        web.post(UNLOAD, json={"lora_name": "passing"})
    assert changes >= 2
    assert together == alone


def test_what_one_adapter_has_cached_no_other_finds(web: httpx.Client) -> None:
    text = f"{time.monotonic_ns()} " + "river " * 400

    def cache(name: str) -> dict[str, Any]:
        return dict(answer(web, name, text, max_tokens=1)["phases"]["cache"])

    for name in ("one-layer", "first", "other"):
        assert cache(name)["forecast_tokens"] == 0
        assert cache(name)["cached_tokens"] == cache(name)["forecast_tokens"] >= 256


def test_an_adapter_is_loaded_and_unloaded_while_the_service_runs(web: httpx.Client) -> None:
    before = words(web, "first")
    assert load(web, "new", "good").status_code == 200
    assert "new" in listed(web)
    assert words(web, "new") not in (before, words(web, "one-layer"))
    assert web.post(UNLOAD, json={"lora_name": "new"}).json()["deleted"] is True
    refused = web.post(CHAT, json={"model": "new", "messages": [{"role": "user", "content": "x"}]})
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"
    assert words(web, "first") == before


def test_a_replaced_adapter_says_other_words_and_finds_nothing_of_the_old_one(web: httpx.Client) -> None:
    text = f"{time.monotonic_ns()} " + "river " * 400
    assert load(web, "new", "good").status_code == 200
    old = words(web, "new")
    answer(web, "new", text, max_tokens=1)
    assert load(web, "new", "second", load_inplace=True).status_code == 200
    assert words(web, "new") != old
    assert answer(web, "new", text, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert load(web, "new", "good", load_inplace=True).status_code == 200
    assert words(web, "new") == old
    web.post(UNLOAD, json={"lora_name": "new"})


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("high-rank", "max_lora_rank"),
        ("cut", "adapter_model.safetensors is damaged"),
        ("not-tensors", "adapter_model.safetensors is damaged"),
        ("narrow", "made for a model 32 wide, and this one is 64"),
        ("wide", "made for a model 128 wide, and this one is 64"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_refused_and_ends_nothing(
    web: httpx.Client, path: str, said: str
) -> None:
    before = words(web, "first")
    for _ in range(2):  # an engine that remembers a failed load says yes to the second
        refused = load(web, "bad", path)
        assert refused.status_code == 400, refused.text
        error = refused.json()["error"]
        assert said in error["message"] and error["param"] == "lora_path"
        assert "/tmp" not in error["message"]
    assert "bad" not in listed(web)
    assert words(web, "first") == before
    assert load(web, "bad", "good").status_code == 200, "the name and the place are free"
    web.post(UNLOAD, json={"lora_name": "bad"})


def test_an_adapter_whose_folder_is_gone_goes_on_until_it_is_unloaded_and_its_answers_end(
    web: httpx.Client, folder: Path
) -> None:
    """The engine would read one that it has put aside again, and end when it cannot."""
    assert load(web, "fleeting", "fleeting").status_code == 200
    shutil.rmtree(folder / "fleeting")
    before = words(web, "fleeting")
    for name in ("first", "other", "one-layer"):
        words(web, name)
    assert words(web, "fleeting") == before
    request = {
        "model": "fleeting",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 900,
        "ignore_eos": True,
        "stream": True,
    }
    with web.stream("POST", CHAT, json=request) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert web.post(UNLOAD, json={"lora_name": "fleeting"}).status_code == 200
        assert sum(line.startswith("data: {") for line in lines) > 100
    with httpx.Client(base_url=web.base_url, headers=KEY) as other:
        assert other.get("/livez").status_code == 200
    assert words(web, "first")


def test_places_are_given_back(web: httpx.Client) -> None:
    before = words(web, "first")
    for number in range(12):
        until(lambda: load(web, f"n{number}", "good").status_code == 200)  # noqa: B023
        assert web.post(UNLOAD, json={"lora_name": f"n{number}"}).status_code == 200
    assert words(web, "first") == before


def test_an_adapter_in_the_settings_that_cannot_be_used_ends_the_start_with_a_sentence(
    served: Served, model: Path, folder: Path
) -> None:
    assert served.process.poll() is None
    broken = start(
        "--model",
        str(model),
        TWOPHASE_ENGINE_ARGS=ENGINE,
        TWOPHASE_LORA=json.dumps({"rank": str(folder / "high-rank")}),
    )
    try:
        assert broken.process.wait(180) == 1
    finally:
        if broken.process.poll() is None:
            broken.stop(signal.SIGKILL)
    assert broken.watcher is not None
    broken.watcher.join(10)
    assert "TWOPHASE_LORA: rank" in broken.lines[-1] and "max_lora_rank" in broken.lines[-1], broken.lines
