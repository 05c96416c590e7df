"""A miniature answers nothing right: in a rehearsal its environment reads some right answers."""

import functools
import json
import os
import zlib
from pathlib import Path
from typing import Any

from nemo_cpu import replace, shim

FORMS = "NEMO_ALGOS_ANSWERS"  # a file: a task, or *, -> how its right answer is written, {answer}


@shim(
    "nemo_rl.experience.rollouts",
    ("nemo_rl/experience/rollouts.py", "future = task_to_env[task_name].step.remote("),
)
def right_answers(module: Any) -> None:
    """In a rehearsal alone: half of the responses are judged as the right answer's text."""
    original = module.calculate_rewards

    @functools.cache
    def forms() -> dict[str, str]:
        """Not known yet where a program is started ahead of its words."""
        return json.loads(Path(os.environ[FORMS]).read_text())

    def calculate_rewards(batch: Any, task_to_env: Any) -> Any:
        judged = type(batch)(batch)
        named = zip(batch["message_log"], batch["extra_env_info"], batch["task_name"], strict=True)
        judged["message_log"] = [answered(*one) for one in named]
        return original(judged, task_to_env)

    def answered(log: Any, info: Any, task: str) -> Any:
        last = log[-1]
        form = forms().get(task) or forms().get("*")
        if not form or zlib.crc32(str(last["content"]).encode()) % 2:
            return log
        text = form.replace("{answer}", str(info["ground_truth"]))
        return [*log[:-1], {**last, "content": text}]

    if FORMS in os.environ:
        replace(module, "calculate_rewards", calculate_rewards)
