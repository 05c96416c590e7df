#!/usr/bin/env bash
# ETR on GSM8K in verl's own trainer (verl 0.9, one node of 8 GPUs). The data by verl's script:
#   python3 examples/data_preprocess/gsm8k.py --local_save_dir ~/data/gsm8k
# Further settings follow the script's name: examples/verl_gsm8k.sh method.micro=0.05 trainer.total_epochs=1
set -euo pipefail

export VERL_USE_EXTERNAL_MODULES=nemo_algos.engines.adapters.verl  # installed on every node

python3 -m verl.trainer.main_ppo \
    trainer.v1.trainer_mode=nemo_algos \
    critic.enable=False \
    +method.name=etr \
    +method.micro=0.1 \
    data.train_files="$HOME/data/gsm8k/train.parquet" \
    data.val_files="$HOME/data/gsm8k/test.parquet" \
    data.train_batch_size=256 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    trainer.logger='[console]' \
    trainer.n_gpus_per_node=8 \
    trainer.test_freq=5 \
    trainer.total_epochs=5 \
    "$@"
