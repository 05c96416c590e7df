"""verl's own trainer on a CPU, in a process of its own: `verl_cpu_run.py DIR RANKS OVERRIDES`.

All of it is verl's but the inference server, which has no CPU form: `Sampler` puts responses of the
initial model into verl's queue, as its agent loop does. DIR has the model and the data; into it go
verl's metrics (metrics.jsonl) and the batches as they came to the advantage step (batches.pt).
"""

# pyright: reportMissingImports=false

import sys
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.config import validate_config
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

here, ranks = Path(sys.argv[1]), int(sys.argv[2])
ROLLOUT, ACTOR, REF, MODEL = (
    f"actor_rollout_ref.{k}" for k in ("rollout", "actor", "ref", "model")
)
SETTINGS = [
    "trainer.v1.trainer_mode=nemo_algos",
    "critic.enable=False",
    f"data.train_files={here}/data.parquet",
    f"data.val_files={here}/data.parquet",
    "data.dataloader_num_workers=0",
    "data.train_batch_size=4",
    f"{MODEL}.path={here}",
    f"{MODEL}.enable_gradient_checkpointing=False",
    f"{MODEL}.use_remove_padding=False",
    f"+{MODEL}.override_config.attn_implementation=eager",
    *(f"{part}.strategy=fsdp2" for part in (ACTOR, REF)),
    *(f"{part}.fsdp_config.strategy=fsdp2" for part in (ACTOR, REF)),
    *(f"{part}.fsdp_config.use_torch_compile=False" for part in (ACTOR, REF)),
    *(f"+{part}.fsdp_config.mixed_precision.param_dtype=fp32" for part in (ACTOR, REF)),
    f"{ACTOR}.optim.lr=1e-2",
    f"{ACTOR}.ppo_mini_batch_size=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=2",
    f"{ACTOR}.calculate_entropy=True",
    *(f"{part}.log_prob_micro_batch_size_per_gpu=2" for part in (ROLLOUT, REF)),
    f"{ROLLOUT}.name=none",
    f"{ROLLOUT}.n=4",
    f"{ROLLOUT}.nnodes=1",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
    f"{ROLLOUT}.calculate_log_probs=False",
    "reward.num_workers=1",
    "trainer.device=cpu",
    f"trainer.n_gpus_per_node={ranks}",
    "trainer.logger=[file]",
    "trainer.val_before_train=False",
    "trainer.resume_mode=disable",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    *sys.argv[3:],
]


class Sampler:
    """In the agent loop's place: four responses to a prompt, a success if most tokens are even."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.random = trainer, torch.Generator().manual_seed(0)
        self.model = AutoModelForCausalLM.from_pretrained(here)

    def generate_sequences(self, batch: Any) -> None:
        for uid, messages in zip(batch["uid"], batch["raw_prompt"], strict=True):
            prompt = torch.tensor(self.trainer.tokenizer.encode(messages[0]["content"]))
            rows = [self.row(prompt) | {"uid": uid} for _ in range(4)]
            keys = [f"{uid}_{session}_0" for session in range(4)]
            tags = [self.tag(row) for row in rows]
            tq.kv_batch_put(keys, "train", list_of_dict_to_tensordict(rows), tags)
            tq.kv_put(key=uid, partition_id="train", tag={"status": "finished"})

    @torch.no_grad()
    def row(self, prompt: torch.Tensor) -> dict[str, Any]:
        tokens, length = prompt, int(torch.randint(3, 9, (), generator=self.random))
        for _ in range(length):
            probs = self.model(tokens[None]).logits[0, -1].softmax(0)
            tokens = torch.cat([tokens, torch.multinomial(probs, 1, generator=self.random)])
        response, mask = tokens[len(prompt) :], torch.ones(length, dtype=torch.long)
        mask[1] = 0  # a hole, as of a tool's answer
        scores = torch.zeros(length)
        scores[-1] = float((response % 2 == 0).float().mean() > 0.5)
        return {
            "prompts": prompt,
            "responses": response,
            "input_ids": tokens,
            "position_ids": torch.arange(len(tokens)),
            "response_mask": mask,
            "loss_mask": mask,
            "rm_scores": scores,
            "num_turns": 2,
        }

    def tag(self, row: dict[str, Any]) -> dict[str, Any]:
        now, lengths = self.trainer.global_steps, [len(row[k]) for k in ("prompts", "responses")]
        steps = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), now)
        sizes = dict(zip(("prompt_len", "response_len"), lengths, strict=True))
        return {"status": "success", "seq_len": sum(lengths), **sizes, **steps}


def main() -> None:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=SETTINGS)
    validate_config(config, use_reference_policy=False, use_critic=False)
    OmegaConf.resolve(config)
    config.transfer_queue.enable = True
    ray.init("local", num_cpus=16, num_gpus=ranks, include_dashboard=False, log_to_driver=False)
    tq.init(config.transfer_queue)
    RolloutReplicaRegistry.register("none", lambda: RolloutReplica)
    base, batches = get_trainer_cls("nemo_algos"), []

    class Trainer(base):
        """Without an inference server, by verl's own switch; nobody to send the weights to."""

        _enable_hybrid_replicas = False
        on_init_end = on_step_end = on_sample_end = lambda self: None

        def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
            names = ["input_ids", "responses", "response_mask", "rm_scores"]
            data = tq.kv_batch_get(batch.keys, "train", names)
            rows = {k: [x.clone() for x in data[k].unbind()] for k in names}
            batches.append(rows | {"uid": [key.split("_")[0] for key in batch.keys]})
            return super()._compute_advantage(batch, metrics)

    try:
        trainer = Trainer(config)
        trainer.init()
        trainer.fit(Sampler(trainer))
        torch.save(batches, here / "batches.pt")
    finally:
        tq.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
