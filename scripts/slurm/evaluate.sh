# shellcheck shell=bash
# A run's evaluations, in NeMo-RL's container: the script that `nemo-algos replicate` writes starts
# this one. The newest checkpoint becomes a model of Hugging Face's, vLLM serves it, and
# `nemo-algos eval` asks it, or loads it itself. EVALUATIONS: a line of words for each; one with
# {step} is of every checkpoint; {weights} stands for the model's folder. Without CHECKPOINTS the
# model itself is evaluated. PROCESSOR: a program that puts what reads images beside a checkpoint.
# Set VLLM, PYTHON and NEMO_RL_ROOT where the container has them elsewhere.
set -euo pipefail
: "${RUN:?}" "${MODEL:?}" "${SERVED:?}" "${ROOT:?}" "${EVALUATIONS:?}"
cd "${NEMO_RL_ROOT:-/opt/nemo-rl}"
vllm=${VLLM:-uv run --extra vllm vllm} python=${PYTHON:-python}
port=$((20000 + ${SLURM_JOB_ID:-0} % 10000))
url="model.url=http://localhost:$port/v1"
trap 'kill ${server:-} 2>/dev/null || true' EXIT

ask() { # an evaluation's words in one string, and further words
	eval "set -- $*"
	PYTHONPATH=$ROOT $python -m nemo_algos "$@"
}

evaluate() { # a checkpoint's folder, or nothing for the model itself; then the evaluations
	local step=$1 served=$MODEL adapter whole line asking=()
	local words=(--served-model-name "$SERVED" --port "$port" --tensor-parallel-size "${TENSOR_PARALLEL:-1}")
	shift
	if [[ $step ]]; then
		adapter=$(find "$step/policy/weights" -name adapter_config.json | head -n 1)
		whole=$(find "$step/policy/weights" -type d -name consolidated | head -n 1)
		if [[ $adapter ]]; then # LoRA: the base model with it
			words=(--port "$port" --enable-lora --max-lora-rank 64
				--lora-modules "$SERVED=$(dirname "$adapter")")
		elif [[ $whole ]]; then
			served=$whole
			words+=(--tokenizer "$step/policy/tokenizer")
		else
			served=$RUN/hf/${step##*/}
			[[ -e $served/config.json ]] || $python examples/converters/convert_dcp_to_hf.py \
				--config "$step/config.yaml" --dcp-ckpt-path "$step/policy/weights" --hf-ckpt-path "$served"
		fi
		[[ ! ${PROCESSOR:-} || $adapter ]] || $python -c "$PROCESSOR" "$MODEL" "$served"
	fi
	for line in "$@"; do # what asks no server comes first: a server takes the GPU
		if [[ $line == *model.name=* ]]; then asking+=("$line"); else ask "${line//\{weights\}/$served}"; fi
	done
	[[ ${asking[*]} ]] || return 0
	$vllm serve "$served" "${words[@]}" &
	server=$!
	until curl -sf "http://localhost:$port/health" >/dev/null; do
		kill -0 $server || exit 1
		sleep 5
	done
	for line in "${asking[@]}"; do ask "$line" "$url"; done
	kill $server
	wait $server || true
}

mapfile -t lines <<<"$EVALUATIONS"
if [[ ! ${CHECKPOINTS:-} ]]; then
	evaluate "" "${lines[@]}"
	exit
fi
mapfile -t steps < <(find "$CHECKPOINTS" -maxdepth 1 -name 'step_*' | sort -V)
: "${steps[0]:?no checkpoint in $CHECKPOINTS}"
for step in "${steps[@]}"; do
	now=()
	for line in "${lines[@]}"; do
		if [[ $line == *"{step}"* || $step == "${steps[-1]}" ]]; then now+=("${line//\{step\}/${step##*step_}}"); fi
	done
	[[ ! ${now[*]} ]] || evaluate "$step" "${now[@]}"
done
