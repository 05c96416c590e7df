"""The command `nemo-algos eval`; examples/run_eval.py is the same."""

from nemo_algos.cli.arguments import Config, Overrides, load_config
from nemo_algos.config import resolve
from nemo_algos.extras import require
from nemo_algos.lab.evals.schema import parse_config
from nemo_algos.terminal import Console, echo


def eval(config: Config, overrides: Overrides = None) -> None:
    """Sample responses to benchmarks, verify them, measure; what is stored is not done again."""
    require("lab")
    ready = parse_config(resolve(load_config(config, overrides, "eval")))
    from nemo_algos.lab.evals.run import evaluate as evaluated  # torch, after the config is checked

    folders = evaluated(ready, Console(highlight=False))
    # a run's own folder has its training too
    own = ready.out is None and ready.folder.name == "eval"
    shown = ready.folder.parent if own else ready.folder
    echo("\n".join(f"stored in {folder}" for folder in folders))
    echo(f"report     nemo-algos report {shown}")
