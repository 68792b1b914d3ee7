"""`/openapi.json`: what it says of fields, bodies, answers and errors is what the code has."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from service.app import build
from service.chat.request import UNHONOURED, ChatRequest
from service.prompt.renderer import Renderer
from service.settings import Settings
from tests.adapters import adapter_folder
from tests.conftest import Serve
from tests.scripted import ScriptedEngine

KEY = {"authorization": "Bearer k"}
WITHOUT_BODY = ("/v1/responses/{response_id}/cancel",)


def _tenant(folder: Path) -> Path:
    """A tenants file with one, who may do everything."""
    file = folder / "tenants.toml"
    digest = hashlib.sha256(b"k").hexdigest()
    rights = '["explain_text", "priority", "lora_admin"]'
    file.write_text(f'[[tenant]]\nname = "a"\nkey_sha256 = ["{digest}"]\nrights = {rights}\n')
    return file


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The description of a service without keys."""
    return build(Settings(), ScriptedEngine(), cast(Renderer, None)).app.openapi()


def test_every_known_field_is_described(described: dict[str, Any]) -> None:
    known = ChatRequest.model_fields.keys() | UNHONOURED.keys()
    assert described["components"]["schemas"]["ChatRequest"]["properties"].keys() == known


def test_every_post_route_has_a_body_with_examples_that_are_valid_and_are_answered(
    described: dict[str, Any], serve: Serve, tmp_path: Path
) -> None:
    adapter_folder(tmp_path / "adapters" / "sql-2")
    client = serve(tenants_file=_tenant(tmp_path), lora_folder=tmp_path / "adapters")
    for path, methods in described["paths"].items():
        if "post" not in methods or path in WITHOUT_BODY:
            continue
        content = methods["post"]["requestBody"]["content"]["application/json"]
        rules = Draft202012Validator({**content["schema"], "components": described["components"]})
        assert content["examples"]
        for example in content["examples"].values():
            rules.validate(example["value"])
            assert client.post(path, json=example["value"], headers=KEY).status_code == 200, path


def test_every_error_is_told_in_the_described_shape(described: dict[str, Any], client: httpx.Client) -> None:
    rules = Draft202012Validator(described["components"]["schemas"]["Error"])
    for response in (client.get("/nothing"), client.patch("/livez"), client.post("/tokenize", json={})):
        rules.validate(response.json())
    assert "HTTPValidationError" not in described["components"]["schemas"]


def test_it_says_where_a_key_is_needed(serve: Serve, tmp_path: Path, described: dict[str, Any]) -> None:
    assert "securitySchemes" not in described["components"]
    client = serve(tenants_file=_tenant(tmp_path))
    assert client.get("/openapi.json").status_code == 401
    told = client.get("/openapi.json", headers=KEY).json()
    assert told["paths"]["/livez"]["get"]["security"] == []
    assert told["paths"]["/v1/chat/completions"]["post"]["security"] == [
        {"bearer": []},
        {"x-api-key": []},
    ]
    assert set(told["components"]["securitySchemes"]) == {"bearer", "x-api-key"}
