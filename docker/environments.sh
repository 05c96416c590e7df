#!/bin/bash
# environments.sh bake | smoke: puts this checkout on the path of NeMo-RL's driver and of all its
# prebuilt worker environments, or imports it in each of them.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
driver=${UV_PROJECT_ENVIRONMENT:-/opt/nemo_rl_venv}
workers=${NEMO_RL_VENV_DIR:-/opt/ray_venvs}

bake() { # a .pth file and not an installation: nothing of the locked environments changes
	echo "$root" >"$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nemo_algos.pth"
}

smoke() {
	cd / && "$1" -c 'import nemo_algos.algorithms.build as ours; print(ours.__file__)' | grep -F "$root/"
}

count=0
for python in "$driver"/bin/python "$workers"/*/bin/python; do
	[[ -x $python ]] || continue
	"$1" "$python" || { echo "$1 failed: $python" >&2 && exit 1; }
	count=$((count + 1))
done
echo "$1: $count environments"
((count > 1)) || { echo "no environments in $driver and $workers" >&2 && exit 1; }
