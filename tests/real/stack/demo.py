"""make stack-demo: countdown's model through the whole of NeMo-RL, on this machine's CPU.

demo.py [key.path=value]...: overrides of recipes/cpu/countdown-1n1g-fsdp.yaml, as method.name=erpo
"""

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "nemo")]

import checkout  # noqa: E402
import whole_run  # noqa: E402

clone = checkout.home()
if clone is None:
    sys.exit("stack-demo: no NeMo-RL checkout (NEMO_RL_HOME names one): see tests/real/nemo/run.sh")
nemo_rl = checkout.worktree(clone, os.environ.get("NEMO_RL_REF", "main"))
folder = Path(tempfile.mkdtemp(prefix="nrl"))
with whole_run.running(folder, nemo_rl, gpus=2) as env:
    status = whole_run.train(folder, env, *sys.argv[1:]).wait()
for step, reward in whole_run.curve(folder, "train/reward").items():
    print(f"step {step:3d}  reward {reward:.3f}")
print(f"logs, checkpoints and the start: {folder}")
sys.exit(status)
