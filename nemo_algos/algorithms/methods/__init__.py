"""The methods by name, without torch; others as `package.module:NAME` (docs/add_a_method.md)."""

from importlib import import_module

from nemo_algos.algorithms.kernel import Method

# files by what their methods change; a method is a record in one of them
FILES = {
    "studied here": ("etr", "quatro", "erpo", "apmpo", "grpo", "gspo", "gmpo", "gpg", "cispo"),
    "other advantages": ("zoo.baselines",),
    "parts of the reward, memory": ("zoo.gdpo", "zoo.spo", "zoo.ema_baseline"),
    "some tokens only": ("zoo.token_choice",),
    "other weights": ("zoo.soft_weights", "zoo.ce_gppo"),
    "one ratio per response": ("zoo.sequence_ratios",),
    "a divergence": ("zoo.divergences",),
}
MODULES = {f: [import_module(f"{__name__}.{name}") for name in names] for f, names in FILES.items()}
FAMILIES = {
    family: [x for module in modules for x in vars(module).values() if isinstance(x, Method)]
    for family, modules in MODULES.items()
}
METHODS: dict[str, Method] = {m.name: m for family in FAMILIES.values() for m in family}
STUDIED = tuple(m.name for m in FAMILIES["studied here"])  # each with a page, a config, figures
