"""`python -m rehearsal.prestart`: `nemo-algos train`, started before its config.

It imports what a run needs, ten seconds, while something else is done; then a line of its standard
input says its words and variables.
"""

import json
import os
import runpy
import sys


def main() -> None:
    """Nothing where no line comes: the rehearsal has ended."""
    from nemo_algos.engines.nemo import launch  # noqa: F401

    line = sys.stdin.readline()
    if line:
        sys.argv[1:], variables = json.loads(line)
        os.environ.update(variables)
        runpy.run_module("nemo_algos", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
