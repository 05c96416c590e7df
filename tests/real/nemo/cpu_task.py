"""A task for a tiny model: prompts and answers of words t2 to t63, reward for odd words."""

from typing import Any

import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 64
STOPS = [1, *range(2, 8)]  # <eos> and t2 to t7: responses of many lengths


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1} | {f"t{i}": i for i in range(2, VOCABULARY)}
    words_of_text = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    words_of_text.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words_of_text, pad_token="<pad>", eos_token="<eos>"
    )


class Prompts(torch.utils.data.Dataset):
    """Distinct prompts of 3 to 7 tokens; prompt i is the same whatever the size."""

    def __init__(self, size: int = 24) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        random = torch.Generator().manual_seed(index)
        ids = torch.randint(8, VOCABULARY, (3 + index % 5,), generator=random)
        text = " ".join(f"t{i}" for i in ids.tolist())
        message = {"role": "user", "content": text, "token_ids": ids}
        datum = {"message_log": [message], "length": len(ids), "idx": index, "task_name": "odd"}
        return datum | {"extra_env_info": {}, "loss_multiplier": 1.0}


class OddTokens(EnvironmentInterface):
    """Reward 1 where most words of the answer are odd; one token of the environment's follows."""

    def step(self, messages: list[Any], metadata: list[Any]) -> EnvironmentReturn:
        answers = [[int(w[1:]) for w in m[-1]["content"].split()] for m in messages]
        rewards = torch.tensor([float(2 * sum(i % 2 for i in a) > len(a)) for a in answers])
        said = [{"role": "environment", "content": "t9"} for _ in messages]
        over = torch.ones(len(messages), dtype=torch.bool)
        return EnvironmentReturn(said, metadata, [None] * len(messages), rewards, over, None)

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        return batch, {}

    def shutdown(self) -> None:
        """Called at the end of training."""
