"""docs/base_configs.md: what `nemo-algos check` says of every GRPO config of NeMo-RL, by method.

    uv run scripts/base_configs.py
    NEMO_RL_HOME=FOLDER uv run scripts/base_configs.py -      (prints it for another NeMo-RL)

tests/preflight/check/test_nemo_rls_configs.py holds the page to it.
"""

import contextlib
import copy
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill
from unittest import mock

from omegaconf import OmegaConf

from nemo_algos.preflight.check.compose import Composed, compose
from nemo_algos.preflight.check.judge import judge_composed
from nemo_algos.preflight.check.release import Release, find

PAGE = Path(__file__).parents[1] / "docs" / "base_configs.md"
NUMBER = re.compile(r"\d+")
METHODS = ("etr", "quatro", "erpo", "apmpo")
# what their launch scripts set, and nothing that this machine happens to have
SET = {"HF_HOME": "/hub", "NRL_IGNORE_TP_ACCURACY_CHECK": "1", "WANDB_MODE": "offline"}
HEAD = """# NeMo-RL's configs, and what fits them

See which of NeMo-RL's configs a method can train from, as `nemo_rl.config`, and which keys
`nemo-algos check` refuses in others that have a `grpo` section.

```bash
uv run nemo-algos check nemo_rl.yaml method.name=quatro nemo_rl.config=vlm_grpo_3B.yaml
```

Each was checked with the four methods' defaults. The lists name refused ones, without folder and
`.yaml`, by the numbers of their keys (for all four methods, unless named). Others have no error,
but may not [have run](nemo_rl.md). NeMo-RL itself stops at `grpo.batch_multiplier`,
`policy.megatron_cfg.defer_fp32_logits` and `policy.dtensor_cfg.cpu_offload` in these files, and
`policy.model_name` is left to the user.
"""
COUNTS = """
## {name}

{counts}

### Refused keys

{keys}

### Refused configs

{groups}
"""


Verdicts = dict[str, dict[str, str]]  # by method, by key: why it is refused


def composed(release: Release, names: Iterable[str] = ()) -> dict[str, Composed]:
    """By name: each config, or those of `names`, with nothing else written."""
    own = {"engine": "nemo_rl", "method": {"name": "grpo"}}
    written = {name: own | {"nemo_rl": {"config": name}} for name in names or release.grpo}
    with nowhere():
        return {name: compose(OmegaConf.create(one), release) for name, one in written.items()}


def page(made: Mapping[str, Composed], name: str) -> str:
    """made: `composed`, of the NeMo-RL of that name."""
    with nowhere():
        found = {config: _verdicts(one) for config, one in made.items()}
    reasons = _reasons(found)
    number = {key: str(i) for i, key in enumerate(reasons, start=1)}
    clean = Counter(method for of in found.values() for method in METHODS if not of[method])
    refused = dict[str, list[str]]()
    for config, of in found.items():
        refused.setdefault(_numbers(of, number), []).append(Path(config).stem)
    every = len(refused.pop("", []))
    count = f"{every} of {len(found)} configs are clean for all four methods"
    each = ", ".join(f"{clean[m]} for `{m}`" for m in METHODS)
    ordered = sorted(refused, key=lambda k: [*map(int, NUMBER.findall(k))])
    return HEAD + COUNTS.format(
        name=name[0].upper() + name[1:],
        counts=_filled(f"{count}: {each}."),
        keys="\n".join(_filled(f"{number[k]}. `{k}`: {reasons[k]}") for k in reasons),
        groups="\n".join(_filled(f"- **{k}**: {', '.join(refused[k])}") for k in ordered),
    )


def _filled(text: str) -> str:
    """Lines of a page; names stay whole."""
    marker = re.match(r"- |\d+\. ", text)
    indent = " " * len(marker[0]) if marker else ""
    return fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _numbers(refused: Verdicts, number: Mapping[str, str]) -> str:
    """The keys' numbers, each with its methods where they are not all."""
    keys = sorted({key for of in refused.values() for key in of})
    methods = {key: [m for m in METHODS if key in refused[m]] for key in keys}
    only = {k: f" ({', '.join(m)})" for k, m in methods.items() if len(m) < len(METHODS)}
    return ", ".join(number[key] + only.get(key, "") for key in keys)


def _verdicts(made: Composed) -> Verdicts:
    found: Verdicts = {}
    for method in METHODS:
        plain = copy.deepcopy(made.plain) | {"method": {"name": method}}
        findings = judge_composed(made._replace(plain=plain))[1]
        found[method] = {f.path: f.message for f in findings if f.severity == "error"}
    return found


def _reasons(found: Mapping[str, Verdicts]) -> dict[str, str]:
    """By key, in order: its reasons, of those that differ in a value alone the most frequent."""
    every = dict[str, Counter[str]]()
    for of in found.values():
        for method, refused in of.items():
            for key, message in refused.items():
                reason = re.sub(rf"\b{method}\b", "the method", message)
                every.setdefault(key, Counter())[reason] += 1
    return {key: " Or: ".join(_unlike(counted)) for key, counted in sorted(every.items())}


def _unlike(reasons: Counter[str]) -> list[str]:
    kinds = dict[str, str]()
    for reason, _ in reasons.most_common():
        kinds.setdefault(re.sub(r"\(\w+\)|-?\d[\d.]*", "", reason), reason)
    return [*kinds.values()]


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
    release = find()
    text = page(composed(release), release.name)
    if sys.argv[1:] == ["-"]:
        print(text)
    else:
        PAGE.write_text(text)
