"""A chat template rendered in a process of its own, within limits: it may be a stranger's.

As a script: {text, given} as JSON on its input, {names, made} or {failure} on its output.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

SECONDS = 2
MEMORY = 1 << 30  # bytes


def rendered(text: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a template reads (`names`) and makes of what it is given (`made`), or its `failure`."""
    asked = json.dumps({"text": text, "given": given})
    command = [sys.executable, "-m", "nemo_algos.preflight.forecast.template"]
    done = subprocess.run(command, input=asked, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if lines:
        return json.loads(lines[-1])
    return {"failure": "it takes too much time or memory"}


def _refuse(message: str) -> None:
    """What transformers gives a template to end with."""
    raise ValueError(message)


def _main() -> None:
    import resource

    from jinja2 import meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with suppress(ValueError):  # macOS takes no limit of memory
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    asked = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        names = sorted(meta.find_undeclared_variables(environment.parse(asked["text"])))
        template = environment.from_string(asked["text"])
        own = {"strftime_now": str, "raise_exception": _refuse}
        answer = {"names": names, "made": template.render(asked["given"], **own)}
    except Exception as failure:  # of the template, whatever it does
        answer = {"failure": str(failure) or type(failure).__name__}
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
