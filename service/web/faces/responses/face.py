"""The routes of OpenAI's responses."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.admission.tenant import Tenant
from service.chat.reply import Reply
from service.errors import InvalidValue, NotFound, Unsupported, shown
from service.settings import Settings
from service.telemetry.phases import Phases
from service.web.choice import Whole
from service.web.face import Asked, Face
from service.web.faces.responses.encode import ItemEncoder
from service.web.faces.responses.items import ended_response, message_of, output_items
from service.web.faces.responses.request import UNHONOURED, ResponsesRequest, responses_request
from service.web.faces.responses.store import Kept, Store
from service.web.faces.said import JsonMap
from service.web.wire import JsonObject, known_fields


class ResponsesFace(Face):
    """Conversations of items. What is to be stored is kept in memory, for as long as there is room."""

    route = "/v1/responses"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._store = Store(settings.response_store_bytes)

    def new_id(self) -> str:
        return f"resp_{uuid.uuid4().hex}"

    def read(self, body: JsonObject, tenant: Tenant) -> Asked:
        wish, ignored = known_fields(ResponsesRequest, body, UNHONOURED, strict=self._settings.strict)
        if wish.store and not self._store.limit_bytes:
            raise Unsupported("This service stores no responses; leave store out.", param="store")
        request, talk, names = responses_request(wish, self._before(wish, tenant))

        def done(response: JsonMap, choice: Whole) -> None:
            if wish.store:
                self._store.keep(tenant.name, response, [*talk, message_of(choice)])

        def whole(reply: Reply, choices: Sequence[Whole], phases: Sequence[Phases]) -> JsonMap:
            (choice,) = choices
            response = ended_response(wish, reply, output_items(reply, choice), choice.finish, phases)
            done(response, choice)
            return response

        return Asked([request], ignored, lambda reply: ItemEncoder(reply, wish, done), whole, names.tell)

    async def stored(self, request: Request, response_id: str) -> Response:
        """A response that was stored."""
        if request.query_params.get("stream", "false") != "false":
            raise Unsupported("A stored response cannot be streamed again; leave stream out.", param="stream")
        return Response(self._found(request, response_id).body, media_type="application/json")

    async def forget(self, request: Request, response_id: str) -> Response:
        """Forget a response that was stored."""
        self._found(request, response_id)
        self._store.drop(request.state.tenant.name, response_id)
        said = {"id": response_id, "object": "response", "deleted": True}
        return Response(orjson.dumps(said), media_type="application/json")

    async def cancel(self, request: Request, response_id: str) -> Response:
        """Only what runs in the background can be cancelled, and here nothing does."""
        self._found(request, response_id)
        raise InvalidValue(
            "This response is complete. No response runs in the background here: to end one that is "
            "under way, close its connection.",
            param="response_id",
        )

    def _found(self, request: Request, response_id: str) -> Kept:
        kept = self._store.get(request.state.tenant.name, response_id)
        if kept is None:
            raise NotFound(
                f"There is no stored response {shown(response_id)}: it was made without store, is under way, "
                "or has been forgotten.",
                param="response_id",
            )
        return kept

    def _before(self, wish: ResponsesRequest, tenant: Tenant) -> list[JsonMap]:
        """The conversation that this request goes on with."""
        if wish.previous_response_id is None:
            return []
        kept = self._store.get(tenant.name, wish.previous_response_id)
        if kept is None:
            raise InvalidValue(
                f"There is no stored response {shown(wish.previous_response_id)}: it was made without store, "
                "or has been forgotten. Send the conversation as input.",
                param="previous_response_id",
            )
        messages: list[JsonMap] = orjson.loads(kept.messages)
        return messages
