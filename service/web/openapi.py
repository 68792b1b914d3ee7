"""What `/openapi.json` says, put together from where fields, routes and errors are declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from service.chat.request import UNHONOURED, ChatRequest
from service.errors import ServiceError
from service.telemetry.record import CHAT_ROUTE
from service.web.adapters import LoadAdapter, UnloadAdapter
from service.web.answering import DEADLINE_HEADER, LONGEST_DEADLINE_MS
from service.web.authenticate import PROBES
from service.web.counting import Detokenize, TokenizeOptions, TokenizeText
from service.web.faces.completions import request as completions
from service.web.faces.completions.request import CompletionRequest
from service.web.faces.messages import request as messages
from service.web.faces.messages.request import CountRequest, MessagesRequest
from service.web.faces.responses import request as responses
from service.web.faces.responses.request import ResponsesRequest
from service.web.shape import MESSAGES, kinds_of_messages_errors

Schema = dict[str, Any]

CHAT = CHAT_ROUTE
Unhonoured = Mapping[str, tuple[object, ...]]

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
KEYS: Mapping[str, Schema] = {  # the ways in which a key may come
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
MODELS: Mapping[type[BaseModel], Unhonoured] = {  # of bodies, with the fields that are known and refused
    ChatRequest: UNHONOURED,
    CompletionRequest: completions.UNHONOURED,
    MessagesRequest: messages.UNHONOURED,
    CountRequest: messages.UNHONOURED,
    ResponsesRequest: responses.UNHONOURED,
    TokenizeOptions: {},
    TokenizeText: {},
    Detokenize: {},
    LoadAdapter: {},
    UnloadAdapter: {},
}
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
CHATS = {
    "whole": {**QUESTION, "max_tokens": 32, "temperature": 0},
    "streamed": {**QUESTION, "stream": True, "stream_options": {"include_usage": True}},
    "history cut to fit": {**QUESTION, "truncation": "auto", "max_tokens": 200},
}
TEXTS = {
    "text": {"prompt": "Once upon a time", "max_tokens": 32},
    "several, streamed": {"prompt": ["Once upon", "In the end"], "max_tokens": 8, "stream": True},
    "token ids, with logprobs": {"prompt": [260, 2], "max_tokens": 4, "logprobs": 2},
}
TURNS = {"messages": QUESTION["messages"], "system": "Answer in one word."}
TALKS = {
    "whole": {**TURNS, "max_tokens": 32},
    "streamed": {**TURNS, "max_tokens": 32, "stream": True},
    "the beginning of the answer given": {
        "messages": [*QUESTION["messages"], {"role": "assistant", "content": "It is"}],
        "max_tokens": 8,
        "stop_sequences": ["."],
    },
}
ITEMS = {
    "text": {"input": "What is the capital of France?", "max_output_tokens": 32},
    "stored, streamed": {"input": "Name three rivers.", "store": True, "stream": True},
    "items": {
        "instructions": "Answer in one word.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Capital of France?"}]}],
        "max_output_tokens": 8,
    },
}
BODIES: Mapping[str, tuple[str, Mapping[str, Schema]]] = {  # of each POST route, with examples
    CHAT: ("ChatRequest", CHATS),
    f"{CHAT}/explain": ("ChatRequest", CHATS),
    COMPLETIONS: ("CompletionRequest", TEXTS),
    MESSAGES: ("MessagesRequest", TALKS),
    f"{MESSAGES}/count_tokens": ("CountRequest", {"conversation": TURNS}),
    RESPONSES: ("ResponsesRequest", ITEMS),
    "/tokenize": ("TokenizeRequest", {"text": {"prompt": "Name three rivers."}, "messages": QUESTION}),
    "/detokenize": ("Detokenize", {"ids": {"tokens": [260, 2]}}),
    "/v1/load_lora_adapter": ("LoadAdapter", {"new": {"lora_name": "sql", "lora_path": "sql-2"}}),
    "/v1/unload_lora_adapter": ("UnloadAdapter", {"by name": {"lora_name": "sql"}}),
}
ANSWERED = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)  # by the model
TEXT = {"schema": {"type": "string"}}
OBJECT: Schema = {"application/json": {"schema": {"type": "object"}}}
STREAM: Schema = {"text/event-stream": {}}  # events, as the API has them
ANSWERS: Mapping[str, Schema] = {  # what is not here answers with a JSON object
    CHAT: {"application/json": {"schema": {"$ref": "#/components/schemas/ChatCompletion"}}} | STREAM,
    COMPLETIONS: OBJECT | STREAM,
    MESSAGES: OBJECT | STREAM,
    RESPONSES: OBJECT | STREAM,
    "/metrics": {"text/plain": TEXT, "application/openmetrics-text": TEXT},
}
COMPLETION: Schema = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage", "phases", "budget"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "usage": {
            "type": "object",
            "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
        },
        "phases": {"type": "object"},
        "budget": {"type": "object"},
    },
}


def openapi(app: FastAPI, *, needs_keys: bool) -> Schema:
    """The description of the app's routes as they are now."""
    described = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes, tags=app.openapi_tags
    )
    for path, methods in described["paths"].items():
        for operation in methods.values():
            _complete(path, operation, needs_keys)
    described["components"] = {"schemas": dict(_schemas())}
    if needs_keys:
        described["components"]["securitySchemes"] = dict(KEYS)
    return described


def _complete(path: str, operation: Schema, needs_keys: bool) -> None:
    """What the framework cannot know of a route that reads its body and writes its answer by itself."""
    operation["responses"] = {
        "200": {"description": "The answer", "content": ANSWERS.get(path, OBJECT)},
        "default": {
            "description": "A refusal: the same shape on every route of an API",
            "content": {"application/json": {"schema": _ref(_error_schema(path))}},
        },
    }
    if path in BODIES:
        name, examples = BODIES[path]
        content = {
            "schema": {"$ref": f"#/components/schemas/{name}"},
            "examples": {label: {"value": value} for label, value in examples.items()},
        }
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    if path in ANSWERED:
        operation["parameters"] = [
            {
                "name": DEADLINE_HEADER,
                "in": "header",
                "description": "How long the caller waits for the whole answer, in milliseconds",
                "schema": {"type": "integer", "minimum": 1, "maximum": LONGEST_DEADLINE_MS},
            }
        ]
    if needs_keys:
        operation["security"] = [] if path in PROBES else [{name: []} for name in KEYS]


def _schemas() -> Iterator[tuple[str, Schema]]:
    for model, unhonoured in MODELS.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        yield from schema.pop("$defs", {}).items()
        schema["properties"] |= {field: _unhonoured(values) for field, values in unhonoured.items()}
        yield model.__name__, schema
    messages = {"allOf": [_ref("ChatRequest"), _ref("TokenizeOptions")]}
    yield "TokenizeRequest", {"anyOf": [_ref("TokenizeText"), messages]}
    yield "ChatCompletion", COMPLETION
    yield "Error", _error()
    yield "MessagesError", _messages_error()


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _unhonoured(values: tuple[object, ...]) -> Schema:
    return {"enum": list(values), "description": "Known and not supported here; any other value is refused."}


def _error() -> Schema:
    kinds = list(_below(ServiceError))
    fields = {
        "message": {"type": "string", "minLength": 1},
        "type": {"enum": sorted({kind.type for kind in kinds})},
        "param": {"type": ["string", "null"]},
        "code": {"enum": sorted({kind.code for kind in kinds})},
    }
    return _exactly({"error": _exactly(fields)})


def _messages_error() -> Schema:
    fields = {"type": {"enum": kinds_of_messages_errors()}, "message": {"type": "string", "minLength": 1}}
    return _exactly({"type": {"const": "error"}, "error": _exactly(fields)})


def _error_schema(path: str) -> str:
    return "MessagesError" if path.startswith(MESSAGES) else "Error"


def _exactly(properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


def _below(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _below(narrower)
