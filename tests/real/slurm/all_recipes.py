"""What `nemo-algos slurm RECIPE --test-only` answers for each recipe named, as JSON.

In a folder with a checkout of each version of NeMo-RL (v0.7.0, main)."""

import json
import sys

from typer.testing import CliRunner

from nemo_algos.cli import app
from nemo_algos.preflight.check.judge import versions

OPTIONS = "--account a --partition paper --image light.sqsh --test-only --checkout"
answers = {}
for recipe in (f"recipes/{name}" for name in sys.argv[1:]):
    done = CliRunner().invoke(app, ["slurm", recipe, *OPTIONS.split(), versions(recipe)[0]])
    answers[recipe[8:]] = done.output
print(json.dumps(answers))
