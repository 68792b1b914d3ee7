"""The routes that load and unload LoRA adapters while the service runs, in the shapes of vLLM's."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.admission.tenant import Tenant
from service.chat.service import Chat
from service.settings import Settings
from service.web.body import read_json_body
from service.web.wire import Fields, checked, header_names, parse_object, unknown_names

Name = Annotated[str, Field(min_length=1, max_length=64)]


class LoadAdapter(BaseModel):
    """The body of `POST /v1/load_lora_adapter`."""

    model_config = ConfigDict(strict=True, frozen=True)

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=1024)]  # in the folder of the settings
    load_inplace: bool | None = None  # give a name that is taken to this adapter
    is_3d_lora_weight: Literal[False] | None = None


class UnloadAdapter(BaseModel):
    """The body of `POST /v1/unload_lora_adapter`."""

    model_config = ConfigDict(strict=True, frozen=True)

    lora_name: Name
    lora_int_id: int | None = None  # taken and without effect: a name is unique


def adapter_routes(chat: Chat, settings: Settings) -> APIRouter:
    """`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`."""
    routes = _Routes(chat, settings)
    router = APIRouter(tags=["adapters"])
    router.post("/v1/load_lora_adapter", summary="Serve a LoRA adapter from now on")(routes.load)
    router.post("/v1/unload_lora_adapter", summary="Serve a LoRA adapter no more")(routes.unload)
    return router


class _Routes:
    def __init__(self, chat: Chat, settings: Settings) -> None:
        self._chat = chat
        self._settings = settings

    async def load(self, request: Request) -> Response:
        wish, headers = await self._read(request, LoadAdapter)
        with self._chat.dry_run(None):
            await self._chat.models.load(wish.lora_name, wish.lora_path, replace=bool(wish.load_inplace))
            return JSONResponse(self._chat.models.card(wish.lora_name), headers=headers)

    async def unload(self, request: Request) -> Response:
        wish, headers = await self._read(request, UnloadAdapter)
        with self._chat.dry_run(None):
            await self._chat.models.unload(wish.lora_name)
            return JSONResponse({"id": wish.lora_name, "object": "model", "deleted": True}, headers=headers)

    async def _read(self, request: Request, fields: type[Fields]) -> tuple[Fields, dict[str, str]]:
        """The body, and the header that names what of it nobody knows; only for who has the right."""
        tenant: Tenant = request.state.tenant
        tenant.require("lora_admin")
        settings = self._settings
        raw = await read_json_body(
            request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        body = parse_object(raw)
        ignored = unknown_names(body, fields.model_fields, strict=settings.strict)
        names = header_names(ignored)
        return checked(fields, body), {"x-ignored-params": names} if names else {}
