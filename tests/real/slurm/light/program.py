"""Stands in for GRPO as the training program of a job without Ray: a step is a line in steps.txt.

grpo.max_num_steps, checkpointing.save_period and where checkpoints go are the config's. With
HOLD_AT=3 an attempt that resumes nothing waits after step 3 until it is asked to stop, or ended;
with HANG_AT=3 it waits for ever. With FAILS_AT=3 step 3 is the last of any attempt, by an error.
"""

import json
import os
import sys
import time
from pathlib import Path

import yaml
from nemo_rl.utils.timer import TimeoutChecker

path = Path(sys.argv[sys.argv.index("--config") + 1])
config, run = yaml.safe_load(path.read_text()), path.parent
keys = config["checkpointing"]
checkpoints, last = Path(keys["checkpoint_dir"]), config["grpo"]["max_num_steps"]
attempt = time.time_ns()


def at(step: int, name: str) -> bool:
    """The step is the variable's."""
    return step == int(os.environ.get(name, 0))


def save(step: int) -> None:
    """As NeMo-RL: under another name until it is whole."""
    whole, partial = checkpoints / f"step_{step}", checkpoints / f"tmp_step_{step}"
    partial.mkdir(parents=True, exist_ok=True)
    (partial / "training_info.json").write_text(json.dumps({"total_steps": step}))
    partial.rename(whole)


done = max([int(p.name[5:]) for p in checkpoints.glob("step_*")], default=0)
prompt = Path("examples/prompts/cot.txt").read_text()
print(f"{len(prompt)} characters of prompt, from step {done} on, node {os.uname().nodename}")
(run / "environment").write_text("".join(f"{k}={v}\n" for k, v in os.environ.items()))
timeout = TimeoutChecker(keys["checkpoint_must_save_by"], fit_last_save_time=True)
timeout.start_iterations()
for step in range(done + 1, last + 1):
    print(f"{'=' * 25} Step {step}/{last} {'=' * 25}", flush=True)
    time.sleep(0.3)
    with (run / "steps.txt").open("a") as lines:
        lines.write(f"{step} {attempt}\n")
    assert not at(step, "FAILS_AT"), "as planned"
    while not done and at(step, "HANG_AT"):
        time.sleep(0.1)
    while not done and at(step, "HOLD_AT") and not (run / "stop").exists():
        time.sleep(0.1)
    timeout.mark_iteration()
    stop = timeout.check_save()
    if stop or step == last or step % keys.get("save_period", 10) == 0:
        save(step)
    if stop:
        break
