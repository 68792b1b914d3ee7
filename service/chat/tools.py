"""The tools of a request and which of them it wants called, checked for shape. Templates see them as sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from service.errors import InvalidValue, MissingValue, Unsupported, shown

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

Tool = dict[str, Any]

_NAME = {"type": "string", "pattern": f"^{NAME.pattern}$"}
TOOLS_SCHEMA = {  # what is checked below, for those who read `/openapi.json`
    "type": ["array", "null"],
    "maxItems": MAX_TOOLS,
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": _NAME,
                    "description": {"type": "string"},
                    "parameters": {"type": "object"},
                },
            },
        },
    },
}
TOOL_CHOICE_SCHEMA = {
    "anyOf": [
        {"enum": [None, "none", "auto", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": _NAME}},
            },
        },
    ]
}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`name` is the tool that has to be called, for the mode `named` alone."""

    mode: Literal["none", "auto", "required", "named"]
    name: str = ""

    @property
    def forced(self) -> bool:
        """Whether the answer has to be a call."""
        return self.mode in ("required", "named")


def check_tools(value: object) -> list[Tool] | None:
    """Function tools of different names.

    Raises:
        InvalidValue: naming the tool and field, such as `tools[1].function.name`.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        raise InvalidValue("tools must be a list.", param="tools")
    if len(value) > MAX_TOOLS:
        raise InvalidValue(f"tools holds {len(value)} tools; at most {MAX_TOOLS}.", param="tools")
    tools = [_tool(item, f"tools[{index}]") for index, item in enumerate(value)]
    names = [tool["function"]["name"] for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            param = f"tools[{index}].function.name"
            raise InvalidValue(f"{param}: there is another tool called {name}.", param=param)
    return tools


def check_tool_choice(value: object) -> ToolChoice | None:
    """A mode, or the tool to call.

    Raises:
        InvalidValue: naming the field.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value in ("none", "auto", "required"):
            return ToolChoice(value)  # type: ignore[arg-type]
        said = f"tool_choice is {shown(value)}; it must be none, auto, required, or name a function."
        raise InvalidValue(said, param="tool_choice")
    if not isinstance(value, dict):
        raise InvalidValue("tool_choice must be text or an object.", param="tool_choice")
    if value.get("type") != "function":
        said = f"tool_choice.type is {shown(value.get('type'))}; only function is known."
        raise Unsupported(said, param="tool_choice.type")
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise MissingValue("tool_choice.function.name is missing.", param="tool_choice.function.name")
    return ToolChoice("named", name)


def parameters_of(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    schema: dict[str, Any] | None = tool["function"].get("parameters")
    return schema or NO_PARAMETERS


def _tool(item: object, at: str) -> Tool:
    if not isinstance(item, dict):
        raise InvalidValue(f"{at} must be an object with type and function.", param=at)
    if item.get("type", "function") != "function":
        said = f"{at}.type is {shown(item['type'])}; only function tools are known."
        raise Unsupported(said, param=f"{at}.type")
    function = item.get("function")
    if not isinstance(function, dict):
        raise InvalidValue(f"{at}.function must be an object with a name.", param=f"{at}.function")
    _check_function(function, f"{at}.function")
    return {"type": "function", **item}


def _check_function(function: dict[str, Any], at: str) -> None:
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        said = f"{at}.name must be 1 to 64 letters, digits, underscores or hyphens, not {shown(name)}."
        raise InvalidValue(said, param=f"{at}.name")
    for field, kind, word in (("description", str, "text"), ("parameters", dict, "a JSON schema, an object")):
        if function.get(field) is not None and not isinstance(function[field], kind):
            raise InvalidValue(f"{at}.{field} must be {word}.", param=f"{at}.{field}")
    if (strict := function.get("strict")) is not None and not isinstance(strict, bool):
        raise InvalidValue(f"{at}.strict must be true or false.", param=f"{at}.strict")
    parameters = function.get("parameters")
    if parameters and parameters.get("type", "object") != "object":
        said = f"{at}.parameters.type is {shown(parameters['type'])}; arguments are an object."
        raise InvalidValue(said, param=f"{at}.parameters.type")
