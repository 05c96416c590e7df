"""docs/messages.md: a wrong config for each rule of `nemo-algos check`, and what it says.

    uv run scripts/messages.py

tests/preflight/check/test_messages_page.py holds the page to it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from base_configs import nowhere

ROOT = Path(__file__).parents[1]
PAGE, TESTS = ROOT / "docs" / "messages.md", ROOT / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "preflight" / "check")]
from mistakes import HERE, MISTAKES, OF, SHARED, Mistake  # noqa: E402
from says import Says  # noqa: E402

from nemo_algos.config import SHIPPED, Finding  # noqa: E402
from nemo_algos.preflight.check.judge import check  # noqa: E402

# rules that read files, the disk or the environment
LOCAL = ("checkpoint_space", "converted_model", "enough_rows", "row_keys", "tensor_accuracy")
LOCAL += ("solutions", "wandb")
HEAD = """# Messages of check

What [`nemo-algos check`](check.md) says of a mistake for each rule: keys over the config of the
heading, then the finding. nemo_rl.yaml and fp8_hopper.yaml are shipped, the others are in
`tests/preflight/check/`.

`scripts/messages.py` writes this page.
"""
CONFIGS = {
    "nemo_rl.yaml": "One GPU, DTensor: nemo_rl.yaml",
    "dense.yaml": "A 70B model on 64 GPUs, Megatron: dense.yaml",
    "moe.yaml": "A mixture of experts on 64 GPUs, Megatron: moe.yaml",
    "controller.yaml": "The single controller: controller.yaml",
    "fp8_hopper.yaml": "FP8 on Hopper: fp8_hopper.yaml",
    "bare.yaml": "A method and nothing else: bare.yaml",
}


def first_of_each_rule() -> list[Mistake]:
    """The first mistake of a rule that needs no file of this machine."""
    every = [m for m in (*MISTAKES, *SHARED) if m.rule not in LOCAL]
    return [*{m.rule: m for m in reversed(every)}.values()][::-1]


def finding(mistake: Mistake) -> Finding:
    """What `check` says of it."""
    here = HERE / mistake.config
    config = str(here if here.exists() else SHIPPED / mistake.config)
    found = check(config, mistake.overrides, OF.get(mistake.rule, "main"))
    return next(
        f
        for f in found
        if (f.severity, f.message) == (mistake.severity, Says(mistake.words))
        and f.path.startswith(mistake.path)
    )


def effective(overrides: list[str]) -> list[str]:
    """Of several values of a key the last."""
    return [*{one.partition("=")[0]: one for one in overrides}.values()]


def page() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *_sections()])


def _sections() -> Iterator[str]:
    chosen = first_of_each_rule()
    with nowhere():
        for config, heading in CONFIGS.items():
            yield f"## {heading}\n\n```text"
            for mistake in (m for m in chosen if m.config == config):
                f = finding(mistake)
                yield from effective(mistake.overrides) or ["(unchanged)"]
                yield f"{f.severity} {f}\n"
            yield "```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
