#!/bin/bash
# base.sh FOLDER: the root of a stand-in for NeMo-RL's image: its layout (a Python of its own, the driver's
# environment, two of its workers'), with what nemo_algos imports in each, and a few programs.
set -euo pipefail
export UV_LINK_MODE=copy # three environments, not three names of the same files
root=$1
workers=nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker
vllm=nemo_rl.models.generation.vllm.vllm_worker.VllmGenerationWorker
python=$(uv python find --no-project 3.13 2>/dev/null || uv python find --no-project '>=3.11')
prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
version=$("$python" -c 'import sys; print(f"python{sys.version_info[0]}.{sys.version_info[1]}")')

mkdir -p "$root"/{bin,usr/bin,etc,proc,sys,dev,run,root,opt/python,opt/nemo-rl} && mkdir -m 1777 "$root/tmp"
printf 'root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000::/tmp:/bin/bash\n' >"$root/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"
mapfile -t libpython < <(cd "$prefix" && compgen -G 'lib/libpython*' || true)
tar -C "$prefix" --exclude=test --exclude=site-packages --exclude='config-*' --exclude=__pycache__ \
	-c "bin/$version" "lib/$version" "${libpython[@]}" | tar -C "$root/opt/python" -x
programs=(bash sh env cat chmod dirname grep mkdir)
for program in "${programs[@]}"; do
	cp -L "$(command -v "$program")" "$root/bin/"
done
ln -s /bin/env "$root/usr/bin/env"

for environment in nemo_rl_venv "ray_venvs/$workers" "ray_venvs/$vllm"; do
	folder=$root/opt/$environment
	uv pip install --quiet --python "$python" --target "$folder/lib/$version/site-packages" pydantic omegaconf
	mkdir -p "$folder/bin"
	ln -s "/opt/python/bin/$version" "$folder/bin/python"
	echo "home = /opt/python/bin" >"$folder/pyvenv.cfg"
done

{ find "$root/bin" "$root/opt/python/bin" -type f && find "$root" -name '*.so*'; } | xargs ldd 2>/dev/null |
	awk '$2 == "=>" {print $3} NF == 2 && $1 ~ "^/" {print $1}' | sort -u >"$root/tmp/libraries" || true
while read -r library; do
	[[ $library != /* || $library == "$root"* ]] || install -D "$library" "$root$library"
done <"$root/tmp/libraries"
