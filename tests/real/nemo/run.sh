#!/bin/sh
# make test-nemo: NeMo-RL's own code on CPU, one version after the other, each in a process of its
# own. NeMo-RL asks for Python 3.13: pyenv's (or its 3.12) if there is one, else uv's own.
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
for ref in ${NEMO_RL_REF:-v0.7.0 main}; do
	echo "NeMo-RL $ref"
	NEMO_RL_REF=$ref uv run --no-project --isolated --python "${python:-3.13}" \
		--with-requirements tests/real/nemo/requirements.txt --with-editable '.[lab]' \
		pytest -q -o addopts="" --disable-warnings "${@:-tests/real/nemo}" || status=1
done
exit $status
