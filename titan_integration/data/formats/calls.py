"""Tool calls and tool descriptions in the one shape that chat templates read."""

import json
from typing import Any

from titan_integration.data.formats.document import RowError


def read_calls(value: Any) -> list[dict[str, Any]]:
    """Tool calls as ``{"type": "function", "function": {"name", "arguments"}}``, plus their ids.

    Takes one call or several, flat or nested, as JSON text or parsed. Arguments that are JSON
    text are decoded once: ``'{"city": "Oslo"}'`` and ``{"city": "Oslo"}`` give the same call.

    Raises:
        RowError: It is no tool call.
    """
    value = _parsed(value, "a tool call is not JSON")
    calls = value if isinstance(value, list) else [value]
    return [_call(_parsed(call, "a tool call is not JSON")) for call in calls if call is not None]


def read_tools(value: Any) -> list[Any] | None:
    """Tool descriptions, each under ``function``; None where there are none.

    Raises:
        RowError: They are neither a list of objects nor JSON text of one.
    """
    if isinstance(value, str) and not value.strip():
        return None
    value = _parsed(value, "'tools' is not JSON")
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list | None):
        raise RowError("'tools' is no list of tools")
    tools = [_tool(_parsed(tool, "'tools' is not JSON")) for tool in value or []]
    return tools or None


def _call(value: Any) -> dict[str, Any]:
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError("a tool call has no name")
    arguments = function.get("arguments", function.get("parameters", function.get("input")))
    call: dict[str, Any] = {
        "type": "function",
        "function": {"name": function["name"], "arguments": _arguments(arguments)},
    }
    if value.get("id") is not None:
        call["id"] = str(value["id"])
    return call


def _arguments(value: Any) -> Any:
    if value is None or value == "":
        return {}
    if not isinstance(value, str):
        return value
    try:
        decoded = json.loads(value)
    except ValueError:
        return value  # What the model wrote was no JSON; a template prints it as it stands.
    return decoded if isinstance(decoded, dict) else value


def _tool(value: Any) -> Any:
    if not isinstance(value, dict):
        raise RowError("'tools' is no list of tools")
    if "function" in value or "name" not in value:
        return value
    return {"type": "function", "function": value}


def _parsed(value: Any, complaint: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError(complaint) from error
