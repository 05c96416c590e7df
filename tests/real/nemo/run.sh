#!/bin/sh
# make test-nemo: NeMo-RL's own code on CPU, one version after the other, each in a process of its
# own. NeMo-RL asks for Python 3.13: pyenv's (or its 3.12) if there is one, else uv's own.
# Pull requests are tried too where they were fetched (git fetch origin refs/pull/N/merge:refs/pull/N/merge):
# 3512 (estimators return an AdvantageResult), 3766 and 3768 (the single controller); for them, what
# meets an estimator, and the step before Ray.
#   tests/real/nemo/run.sh [pytest arguments]; NEMO_RL_REF=main runs that version alone.
set -eu
cd "$(dirname "$0")/../../.."
home=${NEMO_RL_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/nemo_algos/nemo-rl}
if [ ! -e "$home/.git" ]; then
	echo "tests/real/nemo: skipped, no NeMo-RL checkout at $home (NEMO_RL_HOME names another)"
	exit 0
fi
python=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[23]*/bin/python 2>/dev/null |
	sort -V | tail -1)
status=0
pulls=$(for n in 3512 3766 3768; do
	git -C "$home" rev-parse --quiet --verify "refs/pull/$n/merge" >/dev/null && echo $n || true
done)
meeting=$(printf 'tests/real/nemo/test_%s.py ' async class_paths estimator extensions grpo_train \
	imports self_test launch)

suite() {
	NEMO_RL_REF=$ref uv run --no-project --isolated --python "${python:-3.13}" \
		--with-requirements tests/real/nemo/requirements.txt --with-editable '.[lab]' \
		pytest -q -o addopts="" -n auto --maxprocesses=4 --dist=loadfile --disable-warnings "$@" || status=1
}

for ref in ${NEMO_RL_REF:-v0.7.0 main $pulls}; do
	echo "NeMo-RL $ref"
	if [ $# -gt 0 ]; then
		suite "$@"
	else
		case $ref in
		3512) suite $meeting ;;
		37*) suite tests/real/nemo/test_self_test.py ;;
		*) suite tests/real/nemo ;;
		esac
	fi
done
exit $status
