#!/bin/sh
# make test-megatron: megatron-core's own code on CPU, in an environment that has it. Python 3.12 or
# later: pyenv's if there is one, else uv's own.
#   tests/real/megatron/run.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/../../.."
python=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[23]*/bin/python 2>/dev/null |
	sort -V | tail -1)
exec uv run --no-project --isolated --python "${python:-3.13}" \
	--with-requirements tests/real/megatron/requirements.txt --with-editable '.[lab]' \
	pytest -q -o addopts="" --disable-warnings "${@:-tests/real/megatron}"
