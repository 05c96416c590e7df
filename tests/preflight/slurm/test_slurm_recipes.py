"""A recipe is for every method: one command prepares a run of each."""

from slurm_here import LAUNCH, folder, invoked  # noqa: F401

from nemo_algos.config import load

RECIPE = "qwen3-32b-4n8g-tp4pp4"


def test_a_sweep_over_the_methods(here):
    launch = ["slurm", f"recipes/{RECIPE}.yaml", *LAUNCH.format(here).split()]
    said = invoked(*launch, "--sweep", "method.name=etr,quatro,erpo,apmpo")
    assert said.status == 0, said
    runs = sorted(path for path in (here / "runs").iterdir() if path.is_dir())
    configs = [load(run / "config.yaml") for run in runs]
    names = {config["method"]["name"]: config["logger"]["wandb"]["name"] for config in configs}
    assert names == {method: f"{method}-{RECIPE}" for method in ("etr", "quatro", "erpo", "apmpo")}
