#!/bin/sh
# make test-stack: NeMo-RL's own policy workers, vLLM, refit and trainer on a CPU, both versions.
#   tests/stack/run.sh [pytest arguments]; NEMO_RL_REF=main runs that version alone.
set -eu
cd "$(dirname "$0")/../.."
home=${NEMO_RL_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/nemo_algos/nemo-rl}
if [ ! -e "$home/.git" ]; then
	echo "tests/stack: skipped, no NeMo-RL checkout at $home (NEMO_RL_HOME names another)"
	exit 0
fi
venv=$(tests/stack/build.sh)
status=0
for ref in ${NEMO_RL_REF:-v0.7.0 main}; do
	echo "NeMo-RL $ref"
	NEMO_RL_REF=$ref "$venv/bin/python" -m pytest -q -o addopts="" --disable-warnings \
		"${@:-tests/stack}" || status=1
done
exit $status
