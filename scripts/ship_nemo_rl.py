"""Writes the NeMo-RL that ships with this package, for `nemo-algos check` without a checkout.

    python scripts/ship_nemo_rl.py CHECKOUT VLLM    # the folder of its vLLM's package

Run it when the shipped one is old: a config's unknown keys are only warnings there.
"""

import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

from nemo_algos.preflight.check.release import SHIPPED, engine_arguments, is_grpo, read


def kept(root: Path, vllm: Path) -> dict[str, Any]:
    """What is kept of a checkout and its vLLM: its configs below examples/configs.

    Of one that is not for GRPO only the names of its sections.
    """
    release = read(root)
    log = ["git", "-C", str(root), "log", "-1", "--format=%cs (%h)"]
    commit = subprocess.run(log, check=True, capture_output=True, text=True).stdout.strip()
    (info,) = vllm.parent.glob("vllm-*.dist-info")
    version = info.name.removesuffix(".dist-info").split("-")[1].partition("+")[0]
    names = [name for name in release.configs if (root / "examples/configs" / name).is_file()]
    whole = {name: release.configs[name] for name in names}
    configs = {k: v if is_grpo(v) else dict.fromkeys(v) for k, v in whole.items()}
    return {
        "name": f"NeMo-RL of {commit}, which ships with nemo_algos",
        "schema": release.schema,
        "configs": configs,
        "environments": release.environments,
        "data_set_keys": sorted(release.data_set_keys),
        "facts": dict(release.facts),
        "engine": {"name": f"vLLM {version}", "arguments": sorted(engine_arguments(vllm))},
    }


if __name__ == "__main__":
    text = json.dumps(kept(Path(sys.argv[1]).resolve(), Path(sys.argv[2])))
    SHIPPED.write_bytes(lzma.compress(text.encode()))
    print(SHIPPED, SHIPPED.stat().st_size)
