"""Columns to chat messages as templates read them: {role, content} with OpenAI's roles, tool calls as objects."""

import json
from collections.abc import Mapping
from typing import Any

from rljob_api.spec.model import ChatTemplate
from rljob_trainer.data.files import Place, Record, short

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
SYSTEM_ROLES = ("system", "developer")
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"} | {
    role: role for role in ROLES
}
SYSTEM_COLUMNS = ("system", "system_prompt")
"""The second is OpenOrca's name."""
Message = Mapping[str, Any]
Messages = tuple[Message, ...]


def messages_of(value: Any, key: str, place: Place) -> Messages:
    """The conversation in column `key`: messages {role, content} or turns {from, value}, as a list, a single one, or JSON text.

    Raises ConfigurationError for what is none, and for an unknown role.
    """
    if isinstance(value, str):
        value = chat_in(value) or value
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(value, list):
        rule = f"column {key!r} holds {short(value)}, which is not a list of messages"
        raise place.error(rule, "write conversations as lists of {role, content} or of {from, value}")
    return tuple(_message(m, key, place) for m in value)


def spoken(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def system_in(record: Record, place: Place) -> str:
    """The text of the row's column `system` or `system_prompt`; empty where there is none. Raises ConfigurationError for two, and for no text."""
    values = {key: record.get(key) for key in SYSTEM_COLUMNS}
    texts = {key: value for key, value in values.items() if value not in (None, "")}
    for key, value in texts.items():
        if not isinstance(value, str):
            rule = f"column {key!r} holds {short(value)}, which is not a text, and a row's system prompt is one"
            raise place.error(rule, "write it as a text, or give the column another name")
    if len({*texts.values()}) > 1:
        raise place.error(f"has two texts, in {' and '.join(map(repr, texts))}", "keep one of the columns")
    text: str = next(iter(texts.values()), "")
    return text if text.strip() else ""


def with_system(messages: Messages, system: str, place: Place) -> Messages:
    """With the text of the row's column `system` in front. Raises ConfigurationError where the messages begin with another one."""
    if not system or not messages or (messages[0]["role"] in SYSTEM_ROLES and messages[0]["content"] == system):
        return messages
    if messages[0]["role"] in SYSTEM_ROLES:
        rule = f"has the system prompt {short(system)} in a column of its own, and its messages begin with another one"
        raise place.error(rule, "keep one of them")
    return (spoken("system", system), *messages)


def require_no_system_column(system: str, place: Place) -> None:
    """Raises ConfigurationError: a text that goes through no template has no place for one."""
    if system:
        rule = f"has the system prompt {short(system)} in a column, and a text, which is taken as it stands and has no place for it"
        raise place.error(
            rule, "set spec.data.chatTemplate.texts: true, write the row as messages, or remove the column"
        )


def with_system_prompt(messages: Messages, template: ChatTemplate) -> Messages:
    """With that of the spec in front, where there is one and the messages begin with none of their own."""
    if template.system_prompt is None or messages[0]["role"] in SYSTEM_ROLES:
        return messages
    return (spoken("system", template.system_prompt), *messages)


def require_no_system_prompt(template: ChatTemplate, place: Place) -> None:
    """Raises ConfigurationError: a text that goes through no template has no place for one."""
    if template.system_prompt is not None:
        rule = "holds a text, which is taken as it stands and has no place for spec.data.chatTemplate.systemPrompt"
        raise place.error(
            rule, "set spec.data.chatTemplate.texts: true, write the row as messages, or remove the prompt"
        )


def chat_in(text: str) -> list[Any] | None:
    """The messages of a chat that stands in its column as JSON text; None for any other text."""
    if not text.lstrip().startswith("["):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    like_messages = all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value)
    return value if value and like_messages else None


def tools_of(value: Any, place: Place) -> list[Any] | None:
    """The functions that the assistant may call, from the column `tools`: a list of JSON schemas, or JSON text of one. None: there are none."""
    tools = _json(value) if isinstance(value, str) and value.strip() else value
    if not tools:
        return None
    if isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools):
        return tools if isinstance(value, str) else present(tools)
    rule = f"column 'tools' holds {short(value)}, which is not a list of functions"
    raise place.error(rule, "write it as a list of JSON schemas, or as JSON text of one, or leave it empty")


def says_nothing(message: Message) -> bool:
    return not str(message.get("content") or "").strip() and not message.get("tool_calls")


def present(value: Any) -> Any:
    """Without nulls in objects: Arrow gives every object of a file the same fields, and null where one has no such field. JSON text has none of
    those: a null there is meant."""
    if isinstance(value, Mapping):
        return {k: present(v) for k, v in value.items() if v is not None}
    return [present(v) for v in value] if isinstance(value, list) else value


def _message(value: Any, key: str, place: Place) -> Message:
    turn = isinstance(value, Mapping) and "from" in value and "role" not in value
    name, text = ("from", "value") if turn else ("role", "content")
    if not isinstance(value, Mapping) or not isinstance(value.get(name), str):
        rule = f"column {key!r} holds {short(value)}, which is not a message"
        raise place.error(rule, "write every message as an object {role, content} or {from, value}")
    known = SHAREGPT_ROLES if turn else {role: role for role in ROLES}
    if value[name] not in known:
        raise place.error(f"column {key!r} holds the unknown role {value[name]!r}", f"use one of {', '.join(known)}")
    role = known[value[name]]
    if value[name] == "function_call":
        return {"role": role, "content": "", "tool_calls": _calls(_json(value.get(text)), key, place)}
    return plain(role, value.get(text), {k: v for k, v in value.items() if k not in (name, text)}, key, place)


def plain(role: str, content: Any, rest: Message, key: str, place: Place) -> Message:
    """A message as templates read it: its content is a text, and its calls of tools (one of them: OpenAI's older function_call) are objects. Raises
    ConfigurationError where they are neither."""
    given = rest.get("tool_calls") or _older_call(role, rest.get("function_call"))
    calls = {"tool_calls": _calls(given, key, place)} if given else {}
    others = {k: v for k, v in rest.items() if k not in ("tool_calls", "function_call")}
    return present({"role": role, "content": _content(content, key, place), **others}) | calls


def _older_call(role: str, value: Any) -> Any:
    """The assistant's call in the column function_call. None: there is none, as in requests' settings ("none", "auto") and objects without a name."""
    call = _json(value) if isinstance(value, str) else present(value)
    return call if role == "assistant" and isinstance(call, Mapping) and call.get("name") else None


def _content(value: Any, key: str, place: Place) -> str:
    """A text; parts {type: text} are joined to one; null, as next to tool calls, is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in value):
        return "".join(part["text"] for part in value)
    rule = f"column {key!r} holds the content {short(value)}, which is not a text"
    fix = "write the content of every message as a text, or as parts {type: text, text}; with spec.data.imageKey also as images"
    raise place.error(rule, fix)


def _calls(value: Any, key: str, place: Place) -> list[Any]:
    """Calls {type, function: {name, arguments}} with arguments as an object, which templates write as JSON themselves."""
    calls = [value] if isinstance(value, Mapping) else value
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        rule = f"column {key!r} holds {short(value)} for the calls of tools"
        raise place.error(rule, "write calls as objects {name, arguments}, or as a list of them")
    uniform = []
    for call in calls:
        function = call.get("function") or {k: call.get(k) for k in ("name", "arguments")}
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            rule = f"column {key!r} holds {short(call)}, which is not a call of a function with a name"
            raise place.error(rule, "write calls as objects {name, arguments}")
        arguments = function.get("arguments")
        arguments = _json(arguments) if isinstance(arguments, str) else present(arguments)
        named = {"name": function["name"], "arguments": arguments or {}}
        uniform.append({**({"id": call["id"]} if call.get("id") else {}), "type": "function", "function": named})
    return uniform


def _json(text: Any) -> Any:
    """What JSON text stands for; the text itself, when it is none."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
