"""The untrusted program's side: runs it, and answers what the judge asks of its objects.

The program shares this process and may rewrite all of it; it then only lies about itself.
"""

import operator
import socket
import sys
import types
from typing import Any

import plain

NAME = "solution"  # of the program's module; not "__main__", so its demonstrations stay quiet
MESSAGE_CHARS = 300

ASKED = {
    "call": lambda function, *args, **kwargs: function(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "bool": bool,
    "len": len,
    "iter": iter,
    "next": next,
    "item": operator.getitem,
    "set item": operator.setitem,
    "contains": operator.contains,
    "str": str,
}


def serve(channel: socket.socket) -> None:
    """Run the sources of the first message, then answer `[what, args, kwargs]` for ever.

    A reply is `["ok", value, args]`, args where a call that returned None may have changed them
    (else null), or `["raise", builtin class name, message]`.
    """
    objects = _Objects()
    while True:
        message = plain.receive(channel)
        try:
            reply = objects.run(message) if isinstance(message[0], list) else objects.ask(*message)
        except BaseException as error:
            kinds = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            reply = ["raise", next(kinds).__name__, _text(error)]
        plain.send(channel, reply)


class _Objects:
    """The program's module, and what the judge holds references to: a global name or a number."""

    def __init__(self) -> None:
        self._module = types.ModuleType(NAME)
        sys.modules[NAME] = self._module
        self._held: list[Any] = []

    def run(self, message: list[list[str]]) -> list[Any]:
        for source in message[0]:
            # dont_inherit: the program's own __future__ imports, not this file's
            exec(compile(source, "<solution>", "exec", dont_inherit=True), self._module.__dict__)
        return ["ok", None, None]

    def ask(self, what: str, args: list[Any], kwargs: Any) -> list[Any]:
        values = plain.decode(args, self._resolve)
        result = ASKED[what](*values, **plain.decode(kwargs, self._resolve))
        changed = plain.encode(values[1:], self._refer) if what == "call" and result is None else 0
        # An object of the program's own class keeps its methods, whatever it derives from.
        kind = values[0]
        made = what == "call" and isinstance(kind, type) and kind.__module__ == NAME
        reply = {"r": self._refer(result)} if made else plain.encode(result, self._refer)
        return ["ok", reply, changed or None]

    def _refer(self, value: Any) -> int:
        self._held.append(value)
        return len(self._held) - 1

    def _resolve(self, reference: int | str) -> Any:
        if isinstance(reference, int):
            return self._held[reference]
        if not hasattr(self._module, reference):
            raise NameError(f"name {reference!r} is not defined")
        return getattr(self._module, reference)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARS]
    except BaseException:
        return ""
