"""Tools and the choice among them, as a chat request has them."""

from __future__ import annotations

from typing import Any

from service.errors import InvalidValue, Unsupported, shown

OF_FUNCTIONS = ("name", "description", "parameters", "strict")


def chat_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Function tools; those that OpenAI runs itself are not here.

    Raises:
        Unsupported: naming the tool's type.
    """
    for index, tool in enumerate(tools):
        if tool.get("type") != "function":
            at = f"tools[{index}].type"
            said = f"{at} is {shown(tool.get('type'))}; only function tools are known here."
            raise Unsupported(said, param=at)
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tool.items() if name in OF_FUNCTIONS and value is not None}


def chat_choice(choice: object) -> object:
    """A mode, or the function to call.

    Raises:
        InvalidValue: naming the field.
    """
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "function":
        said = f"tool_choice.type is {shown(choice.get('type'))}; only function is known here."
        raise Unsupported(said, param="tool_choice.type")
    if not isinstance(choice.get("name"), str):
        raise InvalidValue("tool_choice.name must be text.", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice["name"]}}
