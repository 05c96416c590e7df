"""python ray_case.py BACKEND FOLDER: a driver.Driver through a real Ray, its numbers in FOLDER.

The cluster is this process's own, with two devices that are none, and ends with it.
"""

import json
import sys
from pathlib import Path

import driver
import local_ray
import models
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster

from nemo_algos.nemo import package


def main(backend: str, folder: Path) -> None:
    model = models.saved("llama", folder / "models")
    local_ray.start(num_cpus=8, num_gpus=2, _temp_dir=str(folder / "ray"))
    cluster = RayVirtualCluster(
        bundle_ct_per_node_list=[2],
        use_gpus=True,
        num_gpus_per_node=2,
        max_colocated_worker_groups=1,
        name="stack",
    )
    worker = package.register_worker(f"{backend}_worker")
    packed = ("policy.sequence_packing.enabled=true",)
    case = driver.Driver(backend, model, cluster, worker, packed)
    found = {"forward": case.forward(), "updates": case.updates("erpo")}
    (folder / f"{backend}.json").write_text(json.dumps(found))
    case.policy.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
