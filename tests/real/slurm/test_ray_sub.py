"""NeMo-RL's ray.sub as it is, with a Ray of two nodes."""

import image
import pytest
from cluster import HERE, Cluster
from runs import Run

OPTIONS = f"--nodes 2 --checkout /srv/nemo-rl --image ray.sqsh --program {HERE / 'ray_program.py'}"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}  # Ray's own choice, of a head alone


@pytest.mark.skipif(image.checkout.home() is None, reason="no clone of NeMo-RL here")
def test_a_signalled_job_saves_is_requeued_and_resumes(cluster: Cluster, run: Run) -> None:
    image.install(cluster.folder / "ray", image.RAY)
    job = run.submit(OPTIONS, **TOKEN)
    run.trained(3, 900)
    assert cluster.user(f"scancel --batch --signal=USR1 {job}").returncode == 0
    assert run.ended(seconds=900) == ("COMPLETED", "0:0", 1)
    assert run.steps() == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    nodes = [line.split()[2] for line in (run.folder / "steps.txt").read_text().splitlines()]
    assert nodes == ["2"] * 5
    assert {p.name for p in (run.folder / "checkpoints").iterdir()} == {"step_3", "step_5"}
    assert run.finished
    logs = [run.folder / "logs" / f"{job}{n}-logs" / "ray-driver.log" for n in ("", "-1")]
    assert ["stopped early" in log.read_text() for log in logs] == [True, False]
