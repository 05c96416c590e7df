"""docs/base_configs.md: what `nemo-algos check` says of every GRPO config of NeMo-RL, by method.

    uv run scripts/base_configs.py

tests/preflight/check/test_nemo_rls_configs.py holds the page to it.
"""

import contextlib
import copy
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from omegaconf import OmegaConf

from nemo_algos.engines.nemo.release import Release
from nemo_algos.preflight.check.judge import judged
from nemo_algos.preflight.check.snapshot import VERSIONS, Composed, compose, load

PAGE = Path(__file__).parents[1] / "docs" / "base_configs.md"
METHODS = ("etr", "quatro", "erpo", "apmpo")
# what their launch scripts set, and nothing that this machine happens to have
SET = {"HF_HOME": "/hub", "NRL_IGNORE_TP_ACCURACY_CHECK": "1", "WANDB_MODE": "offline"}
HEAD = """# NeMo-RL's configs, and what fits them

Every config of NeMo-RL {version} with a `grpo` section can be `nemo_rl.config`: {total} of them.
The table says what `nemo-algos check` finds for the four methods with their defaults and nothing
else written: `clean`, or the numbers of the keys that it refuses. A number stands for a key in the
list below; `check` says why it is refused and what to set instead.

```bash
uv run nemo-algos check nemo_rl.yaml method.name=quatro nemo_rl.config=vlm_grpo_3B.yaml
```

"Clean" is about keys that contradict one another or the method. It does not mean that the run was
made: [what has run](nemo_rl.md) says that. Warnings are not shown. Some refusals are not about our
methods: NeMo-RL itself stops at `grpo.batch_multiplier`, `policy.megatron_cfg.defer_fp32_logits`
and `policy.dtensor_cfg.cpu_offload` in these files, and `policy.model_name` is left to the user.

{counts}

## Keys

{keys}

## Configs

{rows}

`scripts/base_configs.py` writes this page.
"""


def composed(release: Release) -> dict[str, Composed]:
    """By name: each config with nothing else written."""
    own = {"engine": "nemo_rl", "method": {"name": "grpo"}}
    written = {name: own | {"nemo_rl": {"config": name}} for name in release.grpo}
    with _nowhere():
        return {name: compose(OmegaConf.create(one), release) for name, one in written.items()}


def page(made: Mapping[str, Composed]) -> str:
    version = VERSIONS[-1]
    with _nowhere():
        found = {name: _verdicts(one, version) for name, one in made.items()}
    refused = sorted({key for of in found.values() for keys in of.values() for key in keys})
    number = {key: str(i) for i, key in enumerate(refused, start=1)}
    clean = Counter(method for of in found.values() for method in METHODS if not of[method])
    counts = ["| | clean | refused |", "|---|---|---|"]
    counts += [f"| `{m}` | {clean[m]} | {len(found) - clean[m]} |" for m in METHODS]
    rows = [f"| config | {' | '.join(METHODS)} |", f"|---|{'---|' * len(METHODS)}"]
    for name, of in found.items():
        cells = [", ".join(number[key] for key in of[m]) or "clean" for m in METHODS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return HEAD.format(
        version=version,
        total=len(found),
        counts="\n".join(counts),
        keys="\n".join(f"{i}. `{key}`" for key, i in number.items()),
        rows="\n".join(rows),
    )


def _verdicts(made: Composed, version: str) -> dict[str, list[str]]:
    """By method: the keys that are refused."""
    found = dict[str, list[str]]()
    for method in METHODS:
        plain = copy.deepcopy(made.plain) | {"method": {"name": method}}
        findings = judged(made._replace(plain=plain), version)[1]
        found[method] = sorted({f.path for f in findings if f.severity == "error"})
    return found


@contextlib.contextmanager
def _nowhere() -> Iterator[None]:
    """In an empty folder, with the variables that the configs read."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, SET),
    ):
        yield


if __name__ == "__main__":
    PAGE.write_text(page(composed(load(VERSIONS[-1]))))
