# shellcheck shell=bash
# A run's evaluations, in NeMo-RL's container: the script that `nemo-algos replicate` writes starts
# this one. The newest checkpoint becomes a model of Hugging Face's, vLLM serves it, and
# `nemo-algos eval` asks it, or loads it itself. EVALUATIONS: a line of words for each. Without CHECKPOINTS the model
# itself is served. Set VLLM, PYTHON and NEMO_RL_ROOT where the container has them elsewhere.
set -euo pipefail
: "${RUN:?}" "${MODEL:?}" "${SERVED:?}" "${ROOT:?}" "${EVALUATIONS:?}"
cd "${NEMO_RL_ROOT:-/opt/nemo-rl}"
vllm=${VLLM:-uv run --extra vllm vllm} python=${PYTHON:-python}
port=$((20000 + ${SLURM_JOB_ID:-0} % 10000))
words=(--served-model-name "$SERVED" --port "$port" --tensor-parallel-size "${TENSOR_PARALLEL:-1}")

served=$MODEL
if [[ ${CHECKPOINTS:-} ]]; then
	step=$(find "$CHECKPOINTS" -maxdepth 1 -name 'step_*' | sort -V | tail -n 1)
	: "${step:?no checkpoint in $CHECKPOINTS}"
	adapter=$(find "$step/policy/weights" -name adapter_config.json | head -n 1)
	whole=$(find "$step/policy/weights" -type d -name consolidated | head -n 1)
	if [[ $adapter ]]; then # LoRA: the base model with it
		words=(--port "$port" --enable-lora --max-lora-rank 64
			--lora-modules "$SERVED=$(dirname "$adapter")")
	elif [[ $whole ]]; then
		served=$whole
	else
		served=$RUN/hf
		[[ -e $served/config.json ]] || $python examples/converters/convert_dcp_to_hf.py \
			--config "$step/config.yaml" --dcp-ckpt-path "$step/policy/weights" --hf-ckpt-path "$served"
	fi
fi

ask() { # an evaluation whose words are $1, with more of them
	eval "set -- $1 ${2-}"
	PYTHONPATH=$ROOT $python -m nemo_algos "$@"
}
url="model.url=http://localhost:$port/v1" asking=()
while read -r line; do # what asks no server comes first: a server takes the GPU
	if [[ $line == *model.name=* ]]; then asking+=("$line"); else ask "$line"; fi
done <<<"$EVALUATIONS"
[[ ${asking[*]} ]] || exit 0

$vllm serve "$served" "${words[@]}" &
server=$!
trap 'kill $server' EXIT
until curl -sf "http://localhost:$port/health" >/dev/null; do
	kill -0 $server || exit 1
	sleep 5
done
for line in "${asking[@]}"; do ask "$line" "$url"; done
