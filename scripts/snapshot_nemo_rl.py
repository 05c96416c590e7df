"""NeMo-RL's own GRPO configs and its key tree, for `nemo-algos check` without NeMo-RL.

    PYTHONPATH=NEMO_RL_CHECKOUT:. python scripts/snapshot_nemo_rl.py main      (or v0.7.0; in the
    environment of make test-nemo)

Writes nemo_algos/preflight/nemo_rl/VERSION.json.xz; tests/nemo holds it equal to the checkout.
"""

from __future__ import annotations

import json
import lzma
import sys
from typing import Any

from nemo_rl.utils.config import load_config, register_omegaconf_resolvers  # pyright: ignore
from omegaconf import OmegaConf

from nemo_algos.nemo.launch import EXAMPLES, TYPES
from nemo_algos.preflight.decided import declared
from nemo_algos.preflight.snapshot import path_of


def taken() -> dict[str, Any]:
    """`declared`: paths of typed keys; `configs`: name -> config, interpolations as written."""
    register_omegaconf_resolvers()
    files = [*EXAMPLES.glob("grpo*.yaml"), *EXAMPLES.glob("recipes/llm/**/grpo*.yaml")]
    configs = {
        str(file.relative_to(EXAMPLES)): OmegaConf.to_container(load_config(file))
        for file in sorted(files)
    }
    return {"declared": sorted(declared(TYPES)), "configs": configs}


if __name__ == "__main__":
    path = path_of(sys.argv[1])
    path.write_bytes(lzma.compress(json.dumps(taken(), sort_keys=True).encode()))
    print(path, path.stat().st_size)
