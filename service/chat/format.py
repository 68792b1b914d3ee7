"""What a request wants its text to be like: the fields that say so, and the one constraint they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from service.chat.depth import MAX_DEPTH, too_deep
from service.chat.tools import Tool, ToolChoice, parameters_of
from service.engine.protocol import Constraint
from service.errors import InvalidValue, MissingValue

MAX_CHOICES = 1024
MAX_CALLS = 16  # in one answer; without an end a small model would go on calling
ANY_OBJECT = {"type": "object"}


class JsonSchema(BaseModel):
    """A schema with a name. It is kept to whether `strict` is set or not."""

    model_config = ConfigDict(strict=True, frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`: one of these."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    structural_tag: dict[str, Any] | str | None = None


def format_constraint(wanted: ResponseFormat | None) -> Constraint | None:
    """What `response_format` asks for.

    Raises:
        MissingValue: it names no schema.
    """
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Constraint("json", _json(ANY_OBJECT), "response_format")
    field = "response_format.json_schema"
    if wanted.json_schema is None:
        raise MissingValue(f"{field} is missing.", param=field)
    if wanted.json_schema.json_schema is None:
        raise MissingValue(f"{field}.schema is missing.", param=f"{field}.schema")
    return Constraint("json", _json(wanted.json_schema.json_schema), f"{field}.schema")


def structured_constraint(wanted: StructuredOutputs | None) -> Constraint | None:
    """What `structured_outputs` asks for.

    Raises:
        InvalidValue: not exactly one thing, or no JSON where it has to be.
    """
    if wanted is None:
        return None
    given = {name: value for name, value in wanted.model_dump(by_alias=True).items() if value is not None}
    if len(given) != 1:
        has = " and ".join(given) or "nothing"
        said = f"structured_outputs holds {has}; it must hold exactly one constraint."
        raise InvalidValue(said, param="structured_outputs")
    ((name, value),) = given.items()
    field = f"structured_outputs.{name}"
    if name == "json_object":
        return Constraint("json", _json(ANY_OBJECT), field)
    if name in ("json", "structural_tag"):
        return Constraint(name, _json_object(value, field), field)  # type: ignore[arg-type]
    if isinstance(value, str) and "\0" in value:
        raise InvalidValue(f"{field} must not hold a NUL character.", param=field)
    return Constraint(name, _json(value) if name == "choice" else value, field)  # type: ignore[arg-type]


def call_constraint(tools: Sequence[Tool], choice: ToolChoice, *, parallel: bool) -> Constraint:
    """The text of forced calls: the arguments of the named tool, or a list of calls of any of them.

    A list reads `[{"name":"…","parameters":{…}},…]`, the form that `service.chat.calls` takes apart.
    """
    if choice.mode == "named":
        at = next(at for at, tool in enumerate(tools) if tool["function"]["name"] == choice.name)
        return arguments_constraint(tools, at)
    call_schemas = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "parameters": {"$ref": f"#/$defs/{at}"},
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for at, tool in enumerate(tools)
    ]
    schema = {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_CALLS if parallel else 1,
        "items": {"anyOf": call_schemas},
        "$defs": {str(at): _moved(parameters_of(tool), f"#/$defs/{at}") for at, tool in enumerate(tools)},
    }
    return Constraint("json", _json(schema), "tools")


def arguments_constraint(tools: Sequence[Tool], at: int) -> Constraint:
    """The arguments of one tool."""
    return Constraint("json", _json(parameters_of(tools[at])), f"tools[{at}].function.parameters")


def _moved(schema: Any, root: str) -> Any:
    """A schema that stands inside another one, at `root`: what it refers to in itself has moved along."""
    if isinstance(schema, list):
        return [_moved(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: root + value[1:]
        if name == "$ref" and isinstance(value, str) and value.startswith("#")
        else _moved(value, root)
        for name, value in schema.items()
    }


def _json_object(value: dict[str, Any] | str, field: str) -> str:
    """JSON text of an object; some clients send it as a string."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except ValueError:
            value = ""
    if not isinstance(value, dict):
        raise InvalidValue(f"{field} is not a JSON object.", param=field)
    if too_deep(value):
        raise InvalidValue(f"{field} is nested deeper than {MAX_DEPTH} levels.", param=field)
    return _json(value)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
