"""What `nemo-algos slurm RECIPE --test-only` answers for each recipe named, as JSON.

In a folder with a checkout of NeMo-RL, `main`."""

import json
import sys

from typer.testing import CliRunner

from nemo_algos.cli import app

OPTIONS = "--account a --partition paper --image light.sqsh --test-only --checkout"
answers = {}
for recipe in (f"recipes/{name}" for name in sys.argv[1:]):
    done = CliRunner().invoke(app, ["slurm", recipe, *OPTIONS.split(), "main"])
    answers[recipe[8:]] = done.output
print(json.dumps(answers))
