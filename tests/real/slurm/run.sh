#!/usr/bin/env bash
# make test-slurm: `nemo-algos slurm` on Debian's Slurm, three nodes in namespaces of this machine.
#   tests/real/slurm/run.sh [FILE] [pytest arguments]; -m smoke takes two minutes
set -euo pipefail
cd "$(dirname "$0")/../../.."
skip() {
	echo "tests/real/slurm: skipped, $1"
	exit 0
}
[[ $(id -u) == 0 ]] || skip "not root: sudo make test-slurm"
packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm-dev libpmix2 libpmix-dev munge)
packages+=(gcc libc6-dev iproute2 util-linux)
if ! dpkg-query --show "${packages[@]}" >/dev/null 2>&1; then
	command -v apt-get >/dev/null || skip "no apt-get: install ${packages[*]}"
	apt-get update -qq || true
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
		skip "apt-get has not: ${packages[*]}"
fi
unshare --net --pid --mount --uts --ipc --fork mount --make-rprivate / 2>/dev/null ||
	skip "no namespaces: this container lacks CAP_SYS_ADMIN"
[[ ${1:-} == tests/* ]] || set -- tests/real/slurm "$@"
uv run pytest -q -o addopts="" "$@"
