"""The routes that count and run nothing: explain, capacity, tokenize, detokenize."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from service.admission.tenant import Tenant
from service.chat.capacity import capacity_report, shape_asked
from service.chat.service import Chat
from service.engine.protocol import Engine
from service.engine.sampling import INT64_MAX
from service.errors import InvalidValue, MissingValue
from service.prompt.renderer import Renderer
from service.settings import Settings
from service.web.body import read_json_body
from service.web.wire import JsonObject, chat_request, checked, header_names, parse_object, unknown_names

LONG = 10_000  # ids whose names are looked up in a thread: the event loop would stand still for milliseconds

Tokens = Annotated[int | None, Query(ge=0, le=2**31)]


class TokenizeOptions(BaseModel):
    """What both forms of a tokenize request may have beside the text."""

    model_config = ConfigDict(strict=True, frozen=True)

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeText(TokenizeOptions):
    """The text form. The other form has messages, and all that decides how a chat request renders them."""

    model: str | None = None
    prompt: str


class Detokenize(BaseModel):
    """The body of `POST /detokenize`."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=INT64_MAX)]]


def counting_routes(chat: Chat, engine: Engine, renderer: Renderer, settings: Settings) -> APIRouter:
    """`/v1/chat/completions/explain`, `/v1/capacity`, `/tokenize` and `/detokenize`."""
    routes = _Routes(chat, engine, renderer, settings)
    router = APIRouter(tags=["counting"])
    router.post("/v1/chat/completions/explain", summary="What a chat request costs and why, without a run")(
        routes.explain
    )
    router.get("/v1/capacity", summary="How many chats of a shape fit the key-value cache")(routes.capacity)
    router.post("/tokenize", summary="Token ids of a text, or of messages as the model sees them")(
        routes.tokenize
    )
    router.post("/detokenize", summary="The text of some token ids")(routes.detokenize)
    return router


class _Routes:
    def __init__(self, chat: Chat, engine: Engine, renderer: Renderer, settings: Settings) -> None:
        self._chat = chat
        self._engine = engine
        self._renderer = renderer
        self._settings = settings

    async def explain(self, request: Request) -> Response:
        tenant: Tenant = request.state.tenant
        async with self._chat.dry_visit(tenant):
            body = await self._body(request)
            wish, ignored = chat_request(body, strict=self._settings.strict, max_n=self._settings.max_n)
            explanation = await self._chat.explain(wish, tenant)
            spelling = self._renderer.vocabulary.bytes_by_id if tenant.may("explain_text") else None
            report = await asyncio.to_thread(explanation.report, spelling)
        answer = {
            "object": "chat.completion.explanation",
            "model": wish.model or self._chat.models.base,
            **report,
        }
        return _json(answer, ignored, explanation.budget.headers())

    async def capacity(
        self, prompt_tokens: Tokens = None, output_tokens: Tokens = None, cached_tokens: Tokens = None
    ) -> Response:
        with self._chat.dry_run(None):
            window, default = self._engine.facts.context_window, self._settings.default_output_tokens
            shape = shape_asked(window, prompt_tokens, output_tokens, cached_tokens, default)
            return _json(capacity_report(self._engine, shape))

    async def tokenize(self, request: Request) -> Response:
        tenant: Tenant = request.state.tenant
        async with self._chat.dry_visit(tenant):
            body = await self._body(request)
            options = checked(TokenizeOptions, body)
            if _has_text(body):
                ids, ignored = await self._text(body)
            else:
                ids, ignored = await self._messages(body, options, tenant)
            names = await self._names(ids) if options.return_token_strs else None
        answer = {
            "count": len(ids),
            "max_model_len": self._engine.facts.context_window,
            "tokens": ids,
            "token_strs": names,
        }
        return _json(answer, ignored)

    async def detokenize(self, request: Request) -> Response:
        async with self._chat.dry_visit(request.state.tenant):
            body = await self._body(request)
            ignored = unknown_names(body, Detokenize.model_fields, strict=self._settings.strict)
            wish = checked(Detokenize, body)
            with self._chat.dry_run(wish.model):
                return _json({"prompt": await self._renderer.detokenize(wish.tokens)}, ignored)

    async def _body(self, request: Request) -> JsonObject:
        raw = await read_json_body(
            request,
            max_bytes=self._settings.max_body_bytes,
            timeout_s=self._settings.body_timeout_s,
        )
        return parse_object(raw)

    async def _text(self, body: JsonObject) -> tuple[list[int], list[str]]:
        ignored = unknown_names(body, TokenizeText.model_fields, strict=self._settings.strict)
        wish = checked(TokenizeText, body)
        with self._chat.dry_run(wish.model):
            specials = wish.add_special_tokens is not False
            return await self._renderer.tokenize(wish.prompt, add_special_tokens=specials), ignored

    async def _messages(
        self, body: JsonObject, options: TokenizeOptions, tenant: Tenant
    ) -> tuple[list[int], list[str]]:
        fields = {name: value for name, value in body.items() if name not in TokenizeOptions.model_fields}
        wish, ignored = chat_request(fields, strict=self._settings.strict, max_n=self._settings.max_n)
        with self._chat.dry_run(wish.model):
            tenant.require("explain_text")  # the ids spell the template, and what the operator put into it
            ids = (await self._chat.render(wish, tenant)).token_ids
            return await self._with_specials(ids) if options.add_special_tokens else ids, ignored

    async def _with_specials(self, ids: list[int]) -> list[int]:
        """`ids` between the tokens that this tokenizer puts around every text."""
        plain, around = [
            await self._renderer.tokenize("x", add_special_tokens=special) for special in (False, True)
        ]
        before = next(at for at in range(len(around)) if around[at : at + len(plain)] == plain)
        return [*around[:before], *ids, *around[before + len(plain) :]]

    async def _names(self, ids: list[int]) -> list[str]:
        if len(ids) <= LONG:
            return self._renderer.token_strings(ids)
        return await asyncio.to_thread(self._renderer.token_strings, ids)


def _has_text(body: JsonObject) -> bool:
    given = [name for name in ("prompt", "messages") if body.get(name) is not None]
    if not given:
        raise MissingValue("prompt is missing, or messages in its place.", param="prompt")
    if len(given) == 2:
        raise InvalidValue("prompt and messages cannot both be given.", param="prompt")
    return given == ["prompt"]


def _json(answer: Any, ignored: Sequence[str] = (), headers: Mapping[str, str] | None = None) -> Response:
    named = {"x-ignored-params": names} if (names := header_names(list(ignored))) else {}
    return Response(orjson.dumps(answer), media_type="application/json", headers={**(headers or {}), **named})
