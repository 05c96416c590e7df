"""The methods by name, without torch; others as `package.module:NAME` (docs/add_a_method.md).

A method's record is the constant of its name in capitals: of the nine that are studied here in a
file of that name, of the others in the file of their family. The file is imported when METHODS is
asked for the method, so nobody loads the methods that he does not use.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from nemo_algos.algorithms.kernel import Method

# each with a page, a config, figures
STUDIED = ("etr", "quatro", "erpo", "apmpo", "grpo", "gspo", "gmpo", "gpg", "cispo")
# files of zoo/, by what their methods change
ZOO = {
    "advantages": (
        "dr_grpo", "rloo", "opo", "maxrl", "pass_at_k", "lite_ppo", "reinforce_pp",
        "reinforce_pp_baseline", "gdpo", "dvao", "wapo",
    ),
    "clipping": (
        "sapo", "aspo", "ce_gppo", "fipo", "dppo_tv", "dppo_kl", "prime_rl", "ipo", "cppo", "ripo",
        "cfpo",
    ),
    "sequence": ("gspo_token", "luspo", "gepo"),
    "off_policy": ("m2po", "opsm", "vespo", "topr", "dro", "kimi"),
    "entropy": ("high_entropy", "clip_cov", "kl_cov"),
    "memory": ("spo", "ema_baseline"),
    "teachers": ("opd",),
    "turns": ("turn_rloo", "turn_etr", "turn_quatro"),
}  # fmt: skip
FAMILIES = {"studied here": STUDIED} | {k.replace("_", " "): names for k, names in ZOO.items()}


class Registry(Mapping[str, Method]):
    """Method records by name; names, `in` and `len` import none of them."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules

    def __getitem__(self, name: str) -> Method:
        return getattr(import_module(self.modules[name]), name.upper())

    def __contains__(self, name: object) -> bool:
        return name in self.modules

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)


METHODS = Registry(
    {name: f"{__name__}.{name}" for name in STUDIED}
    | {name: f"{__name__}.zoo.{family}" for family, names in ZOO.items() for name in names}
)
