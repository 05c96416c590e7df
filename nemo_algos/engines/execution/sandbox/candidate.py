"""The untrusted program's side: runs it, and answers what the judge asks of its objects.

The program shares this process and may rewrite all of it; it then only lies about itself.
"""

import io
import operator
import socket
import sys
import types
from contextlib import suppress
from typing import Any

import plain

NAME = "solution"  # of the program's module; not "__main__", so its demonstrations stay quiet
SCRIPT = "__main__"  # of one that is a script, and of the function that runs it
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
    """Run the first message, `[sources, script?]`, then answer `[what, args, kwargs]` for ever.

    A reply is `["ok", value, [args, kwargs]]`, the latter where a call that returned None may have
    changed them (else null), or `["raise", builtin class name, message]`.
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

    def run(self, message: list[Any]) -> list[Any]:
        sources, is_script = message
        sys.argv = [f"{NAME}.py"]  # else the zygote's
        # dont_inherit: the program's own __future__ imports, not this file's
        codes = (compile(s, "<solution>", "exec", dont_inherit=True) for s in sources)
        if is_script:
            self._module.__dict__[SCRIPT] = _Script([*codes])
        else:
            for code in codes:
                exec(code, self._module.__dict__)
        return ["ok", None, None]

    def ask(self, what: str, args: list[Any], kwargs: Any) -> list[Any]:
        values, named = (plain.decode(part, self._resolve) for part in (args, kwargs))
        result = ASKED[what](*values, **named)
        changed = None
        if what == "call" and result is None:
            changed = plain.encode([values[1:], [*named.values()]], self._refer)
        # An object of the program's own class keeps its methods, whatever it derives from.
        kind = values[0]
        made = what == "call" and isinstance(kind, type) and kind.__module__ == NAME
        reply = {"r": self._refer(result)} if made else plain.encode(result, self._refer)
        return ["ok", reply, changed]

    def _refer(self, value: Any) -> int:
        self._held.append(value)
        return len(self._held) - 1

    def _resolve(self, reference: int | str) -> Any:
        if isinstance(reference, int):
            return self._held[reference]
        if not hasattr(self._module, reference):
            raise NameError(f"name {reference!r} is not defined")
        return getattr(self._module, reference)


class _Script:
    """A function of stdin's text that runs the program from its beginning: what it has written.

    What a program leaves in other modules stays for its next run.
    """

    def __init__(self, codes: list[types.CodeType]):
        self._codes = codes

    def __call__(self, text: str) -> str:
        module = types.ModuleType(SCRIPT)
        written = io.BytesIO()
        # exit and quit are site's, which is not loaded
        module.__dict__.update(exit=sys.exit, quit=sys.exit, open=_open)
        sys.modules[SCRIPT] = module
        # Held here, because they close with the last reference, and a program may put others there.
        given = io.TextIOWrapper(io.BytesIO(text.encode(errors="replace")), "utf-8")
        taken = io.TextIOWrapper(written, "utf-8", "replace", write_through=True)
        sys.stdin = given
        sys.stdout = taken
        with suppress(SystemExit):
            for code in self._codes:
                exec(code, module.__dict__)
        sys.stdout.flush()
        return written.getvalue().decode(errors="replace")


def _open(file: Any, *args: Any, **kwargs: Any) -> Any:
    if file == 0:
        return sys.stdin
    return open(file, *args, **kwargs)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARS]
    except BaseException:
        return ""
