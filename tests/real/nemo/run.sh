#!/bin/sh
# make test-nemo: NeMo-RL's own code on CPU, one version after the other, each in a process of its
# own. NeMo-RL asks for Python 3.13: pyenv's (or its 3.12) if there is one, else uv's own.
# NVIDIA-NeMo/RL#3512, where estimators return an AdvantageResult, is a third one where it was fetched
# (git fetch origin refs/pull/3512/merge:refs/pull/3512/merge): for it, what meets an estimator.
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
pull=$(git -C "$home" rev-parse --quiet --verify refs/pull/3512/merge >/dev/null && echo 3512 || true)
meeting=$(printf 'tests/real/nemo/test_%s.py ' async class_paths estimator extensions grpo_train \
	imports self_test launch)

suite() {
	NEMO_RL_REF=$ref uv run --no-project --isolated --python "${python:-3.13}" \
		--with-requirements tests/real/nemo/requirements.txt --with-editable '.[lab]' \
		pytest -q -o addopts="" -n auto --maxprocesses=4 --dist=loadfile --disable-warnings "$@" || status=1
}

for ref in ${NEMO_RL_REF:-v0.7.0 main $pull}; do
	echo "NeMo-RL $ref"
	if [ $# -gt 0 ]; then
		suite "$@"
	elif [ "$ref" = 3512 ]; then
		suite $meeting
	else
		suite tests/real/nemo
	fi
done
exit $status
