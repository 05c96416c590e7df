#!/bin/sh
# make test-stack: NeMo-RL's own policy workers, vLLM, refit and trainer on a CPU, both versions; each
# file in a process of its own: workers are forked, and no engine may run where one forks.
#   tests/real/stack/run.sh [FILE] [pytest arguments]; NEMO_RL_REF=main runs that version alone.
set -eu
cd "$(dirname "$0")/../../.."
home=${NEMO_RL_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/nemo_algos/nemo-rl}
if [ ! -e "$home/.git" ]; then
	echo "tests/real/stack: skipped, no NeMo-RL checkout at $home (NEMO_RL_HOME names another)"
	exit 0
fi
venv=$(python3 tests/real/stack/rehearsal/machine.py)
files=$(ls tests/real/stack/test_*.py)
case ${1:-} in
tests/*)
	files=$1
	shift
	;;
esac
case "$*" in
"-m smoke") files=$(grep -lE 'mark\.smoke|SMOKE_CASES =' $files) ;; # the others would import for nothing
esac
status=0
for ref in ${NEMO_RL_REF:-v0.7.0 main}; do
	for file in $files; do
		echo "NeMo-RL $ref: $file"
		NEMO_RL_REF=$ref "$venv/bin/python" -m pytest -q -o addopts="" --disable-warnings "$file" "$@" ||
			[ $? = 5 ] || status=1 # 5: none of its tests is asked for
	done
done
exit $status
