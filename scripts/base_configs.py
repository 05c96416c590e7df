"""docs/base_configs.md: what `nemo-algos check` says of every GRPO config of NeMo-RL, by method.

    uv run scripts/base_configs.py

tests/preflight/check/test_nemo_rls_configs.py holds the page to it.
"""

import contextlib
import copy
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from omegaconf import OmegaConf

from nemo_algos.engines.nemo.release import Release
from nemo_algos.preflight.check.judge import judge_composed
from nemo_algos.preflight.check.snapshot import VERSIONS, Composed, compose, load

PAGE = Path(__file__).parents[1] / "docs" / "base_configs.md"
METHODS = ("etr", "quatro", "erpo", "apmpo")
# what their launch scripts set, and nothing that this machine happens to have
SET = {"HF_HOME": "/hub", "NRL_IGNORE_TP_ACCURACY_CHECK": "1", "WANDB_MODE": "offline"}
HEAD = """# NeMo-RL's configs, and what fits them

Every config of NeMo-RL with a `grpo` section can be `nemo_rl.config`. The tables say what
`nemo-algos check` finds for the four methods with their defaults and nothing else written: `clean`,
or the numbers of the keys that it refuses. The list before a table has each number's key, and why
it is refused.

```bash
uv run nemo-algos check nemo_rl.yaml method.name=quatro nemo_rl.config=vlm_grpo_3B.yaml
```

"Clean" is about keys that contradict one another or the method. It does not mean that the run was
made: [what has run](nemo_rl.md) says that. Warnings are not shown. Some refusals are not about our
methods: NeMo-RL itself stops at `grpo.batch_multiplier`, `policy.megatron_cfg.defer_fp32_logits`
and `policy.dtensor_cfg.cpu_offload` in these files, and `policy.model_name` is left to the user.

`scripts/base_configs.py` writes this page.
"""
SECTION = """
## NeMo-RL {version}: {total} configs

{counts}

Keys that are refused, and why:

{keys}

{rows}
"""


def composed(release: Release) -> dict[str, Composed]:
    """By name: each config with nothing else written."""
    own = {"engine": "nemo_rl", "method": {"name": "grpo"}}
    written = {name: own | {"nemo_rl": {"config": name}} for name in release.grpo}
    with nowhere():
        return {name: compose(OmegaConf.create(one), release) for name, one in written.items()}


def page(made: Mapping[str, Mapping[str, Composed]]) -> str:
    """made: `composed`, by version; the newest comes first."""
    return HEAD + "".join(section(made[v], v) for v in reversed(VERSIONS))


def section(made: Mapping[str, Composed], version: str) -> str:
    """A version's part of the page."""
    with nowhere():
        found = {name: _verdicts(one, version) for name, one in made.items()}
    reasons = _reasons(found)
    number = {key: str(i) for i, key in enumerate(reasons, start=1)}
    clean = Counter(method for of in found.values() for method in METHODS if not of[method])
    counts = ["| | clean | refused |", "|---|---|---|"]
    counts += [f"| `{m}` | {clean[m]} | {len(found) - clean[m]} |" for m in METHODS]
    rows = [f"| config | {' | '.join(METHODS)} |", f"|---|{'---|' * len(METHODS)}"]
    for name, of in found.items():
        cells = [", ".join(number[key] for key in sorted(of[m])) or "clean" for m in METHODS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return SECTION.format(
        version=version,
        total=len(found),
        counts="\n".join(counts),
        keys="\n".join(f"{number[key]}. `{key}`: {why}" for key, why in reasons.items()),
        rows="\n".join(rows),
    )


Verdicts = dict[str, dict[str, str]]  # by method, by key: why it is refused


def _verdicts(made: Composed, version: str) -> Verdicts:
    found: Verdicts = {}
    for method in METHODS:
        plain = copy.deepcopy(made.plain) | {"method": {"name": method}}
        findings = judge_composed(made._replace(plain=plain), version)[1]
        found[method] = {f.path: f.message for f in findings if f.severity == "error"}
    return found


def _reasons(found: Mapping[str, Verdicts]) -> dict[str, str]:
    """By key, in order: its reasons, the most frequent first, of whichever method."""
    every = dict[str, Counter[str]]()
    for of in found.values():
        for method, refused in of.items():
            for key, message in refused.items():
                reason = re.sub(rf"\b{method}\b", "the method", message)
                every.setdefault(key, Counter())[reason] += 1
    return {k: "; or: ".join(r for r, _ in c.most_common()) for k, c in sorted(every.items())}


@contextlib.contextmanager
def nowhere() -> Iterator[None]:
    """In an empty folder, with the variables that the configs read."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, SET),
    ):
        yield


if __name__ == "__main__":
    PAGE.write_text(page({version: composed(load(version)) for version in VERSIONS}))
