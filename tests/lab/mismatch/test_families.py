"""The recomputed forward is the model's own, of each family, or the family is refused."""

import peaked_llama as small
import pytest
import torch
import transformers as hf
from says import Says

from nemo_algos.engines.mismatch.dump import from_arrays
from nemo_algos.lab.mismatch.examination import examine
from nemo_algos.lab.mismatch.network import load, recompute
from nemo_algos.lab.mismatch.responses import gather

RIGHT = {
    "Llama": {},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 4.0, "attention_multiplier": 0.2},
    "Gemma2": {"head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 5.0},
    "GPT2": {},
    "GPTNeoX": {},
    "Falcon": {},
}
REFUSED = ["Bloom", "Mamba"]


def made(family, tmp_path, **more):
    """A folder of random weights."""
    config = small.CONFIG | more
    if family != "Llama":
        config |= {"tie_word_embeddings": True}
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(getattr(hf, f"{family}Config")(**config)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight *= 4
    return small.saved(model, tmp_path)


@pytest.mark.parametrize("family", RIGHT)
def test_a_family_gives_its_own_logits(family, tmp_path):
    folder = made(family, tmp_path, **RIGHT[family])
    network = load(folder)
    rollouts = small.sampled(small.model())
    own = small.logprobs(small.logits(network.model, rollouts), rollouts)
    responses = gather([from_arrays(rollouts.arrays(own, own))], 64)
    found = recompute(network, responses).logprobs
    assert abs(found - torch.cat(own).numpy()).max() < 1e-3
    assert torch.cat(own).std() > 0.1


@pytest.mark.parametrize("family", REFUSED)
def test_another_family_is_refused_in_a_sentence(family, tmp_path):
    folder = made(family, tmp_path)
    rollouts = small.sampled(small.model())
    zeros = [torch.zeros(len(r)) for r in rollouts.responses]
    with pytest.raises(ValueError) as error:
        examine([from_arrays(rollouts.arrays(zeros, zeros))], folder)
    assert str(error.value) == Says(str(folder)) and "\n" not in str(error.value)
