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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill
from unittest import mock

from omegaconf import OmegaConf

from nemo_algos.engines.nemo.release import Release
from nemo_algos.preflight.check.judge import judge_composed
from nemo_algos.preflight.check.snapshot import VERSIONS, Composed, compose, load

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
SECTION = """
## NeMo-RL {version}

{counts}
"""
KEYS = """
### Refused keys of {version}

{keys}
"""
GROUPS = """
### Refused configs of {version}

{groups}
"""
ALIKE = (
    "Keys have the numbers above. Configs that {newest} lists with the same numbers are left out."
)


Verdicts = dict[str, dict[str, str]]  # by method, by key: why it is refused


def composed(release: Release, names: Iterable[str] = ()) -> dict[str, Composed]:
    """By name: each config, or those of `names`, with nothing else written."""
    own = {"engine": "nemo_rl", "method": {"name": "grpo"}}
    written = {name: own | {"nemo_rl": {"config": name}} for name in names or release.grpo}
    with nowhere():
        return {name: compose(OmegaConf.create(one), release) for name, one in written.items()}


def page(made: Mapping[str, Mapping[str, Composed]]) -> str:
    """made: `composed`, by version; the newest comes first, and whole."""
    newest, *others = reversed(VERSIONS)
    first = section(made[newest], newest)
    return HEAD + first + "".join(section(made[v], v, first) for v in others)


def section(made: Mapping[str, Composed], version: str, above: str = "") -> str:
    """A version's part of the page. above: the newest version's; then only what differs from it."""
    with nowhere():
        found = {name: _verdicts(one, version) for name, one in made.items()}
    known = dict(re.findall(r"^\d+\. `(.+?)`: (.+(?:\n .+)*)", above, re.MULTILINE))
    reasons = _reasons(found)
    new = [key for key in reasons if not known or not _alike(reasons[key], known.get(key, ""))]
    order = [*known, *(key for key in new if key not in known)] if known else [*reasons]
    number = {key: str(i) for i, key in enumerate(order, start=1)}
    clean = Counter(method for of in found.values() for method in METHODS if not of[method])
    listed = {
        name: numbers
        for numbers, names in re.findall(r"^- \*\*(.*?)\*\*:\s+(.+(?:\n .+)*)", above, re.MULTILINE)
        for name in re.split(r",\s+", names)
    }
    refused = dict[str, list[str]]()
    for name, of in found.items():
        refused.setdefault(_numbers(of, number), []).append(Path(name).stem)
    count = f"{len(refused[''])} of {len(found)} configs are clean for all four methods"
    each = ", ".join(f"{clean[m]} for `{m}`" for m in METHODS)
    groups = {k: [n for n in names if listed.get(n, "") != k] for k, names in refused.items()}
    ordered = sorted((k for k in groups if groups[k]), key=lambda k: [*map(int, NUMBER.findall(k))])
    keys = "\n".join(_filled(f"{number[k]}. `{k}`: {reasons[k]}") for k in new)
    said = "\n".join(_filled(f"- **{k or 'no error'}**: {', '.join(groups[k])}") for k in ordered)
    alike = "\n\n" + _filled(ALIKE.format(newest=VERSIONS[-1])) if above else ""
    parts = [SECTION.format(version=version, counts=_filled(f"{count}: {each}.") + alike)]
    parts += [KEYS.format(version=version, keys=keys)] if keys else []
    parts += [GROUPS.format(version=version, groups=said)] if said else []
    return "".join(parts)


def _alike(reason: str, other: str) -> bool:
    """Whether two reasons differ in a value alone."""
    return re.sub(r"\s+|-?\d[\d.]*", "", reason) == re.sub(r"\s+|-?\d[\d.]*", "", other)


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


def _verdicts(made: Composed, version: str) -> Verdicts:
    found: Verdicts = {}
    for method in METHODS:
        plain = copy.deepcopy(made.plain) | {"method": {"name": method}}
        findings = judge_composed(made._replace(plain=plain), version)[1]
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
    PAGE.write_text(page({version: composed(load(version)) for version in VERSIONS}))
