"""NeMo-RL's own configs and its key tree, for `nemo-algos check` without NeMo-RL.

    PYTHONPATH=NEMO_RL_CHECKOUT:. python scripts/snapshot_nemo_rl.py main      (or v0.7.0; in the
    environment of make test-nemo)

Writes nemo_algos/preflight/check/nemo_rl/VERSION.json.xz; tests/real/nemo compares it
with the checkout.
"""

from __future__ import annotations

import json
import lzma
import sys
from typing import Any

from nemo_algos.engines.nemo.installed import find_release
from nemo_algos.engines.nemo.release import is_grpo
from nemo_algos.preflight.check.snapshot import path_of


def taken() -> dict[str, Any]:
    """`schema`: of typed keys by path; `configs`: name -> config, interpolations as written.

    Of a config that is not for GRPO the names of its sections alone.
    """
    release = find_release()
    configs = {k: v if is_grpo(v) else dict.fromkeys(v) for k, v in release.configs.items()}
    return {"schema": release.schema, "configs": configs}


if __name__ == "__main__":
    path = path_of(sys.argv[1])
    path.write_bytes(lzma.compress(json.dumps(taken(), sort_keys=True).encode()))
    print(path, path.stat().st_size)
