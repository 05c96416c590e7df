"""`sbatch --test-only` of every recipe: a partition of 128 nodes of 8 GPUs would take it."""

import json

import image
from cluster import HERE, ROOT, Cluster

RECIPES = sorted(p.name for p in (ROOT / "examples" / "configs" / "recipes").glob("*.yaml"))


def test_slurm_would_take_every_recipe(cluster: Cluster) -> None:
    image.bare_checkout(cluster.home / "main", "exit 1")
    done = cluster.user(f"python {HERE / 'all_recipes.py'} {' '.join(RECIPES)}")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert set(answers) == set(RECIPES) and len(RECIPES) >= 27
    assert not {name: said for name, said in answers.items() if "to start at" not in said}
