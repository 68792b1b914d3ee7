"""Tools and the choice among them, as a chat request has them."""

from __future__ import annotations

from typing import Any

from service.errors import InvalidValue, MissingValue, Unsupported, shown

CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(value: object) -> list[dict[str, Any]]:
    """The caller's own tools; those that Anthropic runs itself are not here.

    Raises:
        InvalidValue: naming the field, such as `tools[0].type`.
    """
    if not isinstance(value, list):
        raise InvalidValue("tools must be a list.", param="tools")
    return [_tool(item, f"tools[{index}]") for index, item in enumerate(value)]


def chat_choice(value: object) -> dict[str, Any]:
    """The fields of a chat request that say the same.

    Raises:
        InvalidValue: naming the field.
    """
    if not isinstance(value, dict):
        raise InvalidValue("tool_choice must be an object with a type.", param="tool_choice")
    kind = value.get("type")
    fields: dict[str, Any] = {}
    if kind == "tool":
        name = value.get("name")
        if not isinstance(name, str):
            raise MissingValue("tool_choice.name is missing.", param="tool_choice.name")
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif isinstance(kind, str) and kind in CHOICES:
        fields["tool_choice"] = CHOICES[kind]
    else:
        said = f"tool_choice.type is {shown(kind)}; it must be auto, any, tool or none."
        raise InvalidValue(said, param="tool_choice.type")
    alone = value.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        at = "tool_choice.disable_parallel_tool_use"
        raise InvalidValue(f"{at} must be true or false.", param=at)
    return {**fields, "parallel_tool_calls": False} if alone else fields


def _tool(item: object, at: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InvalidValue(f"{at} must be an object with a name and an input_schema.", param=at)
    if item.get("type") not in (None, "custom"):
        said = f"{at}.type is {shown(item['type'])}; only tools of your own (custom) are known here."
        raise Unsupported(said, param=f"{at}.type")
    function = {"name": item.get("name")}
    if item.get("description") is not None:
        function["description"] = item["description"]
    if "input_schema" not in item:
        raise MissingValue(f"{at}.input_schema is missing.", param=f"{at}.input_schema")
    function["parameters"] = item["input_schema"]
    return {"type": "function", "function": function}
