#!/bin/sh
# What only a GPU shows, in pieces of under nine minutes, the most telling first.
#   benchmarks/gpu_half_hour.sh FOLDER [PIECE...]   each leaves FOLDER/PIECE.json, and is then done
#   python benchmarks/gpu_figures.py table FOLDER   the table of them all
# python must have this package and torch with CUDA; for fsdp and megatron also vLLM and NeMo-RL,
# whose checkout NEMO_RL_HOME names. `engine` goes on where it ended, and needs some turns.
# Without a GPU: SMALL=1, and the pieces kernels, fp8_gemm and engine.
set -u
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
pieces=${*:-kernels fp8_gemm fsdp megatron engine}
cd "$(dirname "$0")/.." || exit
export PYTHONPATH="${NEMO_RL_HOME:+$NEMO_RL_HOME:}$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}"
status=0

piece() { # NAME COMMAND...
	name=$1
	shift
	case " $pieces " in *" $name "*) ;; *) return ;; esac
	[ -e "$out/$name.json" ] && return
	timeout -s INT -k 20 520 "$@" >"$out/$name.log" 2>&1 || status=$?
	[ -e "$out/$name.json" ] && echo "$name" || echo "$name: no figures, see $out/$name.log"
}

sized() { # SMALL_OPTIONS; else the sizes of a GPU
	[ "${SMALL:-}" ] && echo "$1" || echo "${2:---device cuda}"
}

# shellcheck disable=SC2046 # words
{
	piece kernels python benchmarks/entropy.py --json "$out/kernels.json" $(sized "--positions 64")
	piece fp8_gemm python benchmarks/fp8_gemm.py --json "$out/fp8_gemm.json" \
		$(sized "--tokens 128 --hidden 256 --inner 256")
	piece fsdp python benchmarks/gpu_figures.py run countdown-1n1g-fsdp "$out/fsdp.json"
	piece megatron python benchmarks/gpu_figures.py run countdown-1n1g-megatron "$out/megatron.json"
	piece engine python benchmarks/gpu_figures.py study "$out/engine.json" \
		$(sized "policy.device=cpu policy.shape=null policy.taught.steps=20 policy.taught.device=cpu grpo.max_num_steps=1" " ")
}
exit $status
