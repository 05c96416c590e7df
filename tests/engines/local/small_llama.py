"""A random Llama of 40 words on disk, with a tokenizer and a chat template; no network."""

from nemo_algos.engines.local.schema import PolicySection

SPECIAL = ["<pad>", "<eos>", "<unk>", "<stop>"]
WORDS = [*SPECIAL, "user", "assistant", *"+-=?", "what", "is", "so", "####", *map(str, range(26))]
TEMPLATE = (
    "{% for m in messages %}user {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def tokenizer(**wanted):
    """A tokenizer; wanted: other special tokens, or None for none."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", **wanted}
    made = PreTrainedTokenizerFast(
        tokenizer_object=words, **{k: v for k, v in tokens.items() if v is not None}
    )
    made.chat_template = TEMPLATE
    return made


def save(folder, **config):
    """A model whose distributions are far from uniform; config: further keys of LlamaConfig."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": WORDS.index("<eos>"),
        "pad_token_id": WORDS.index("<pad>"),
    }
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{**sizes, **config})).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def section(folder, **settings):
    """The config's `policy` section for the model in the folder."""
    return PolicySection.model_validate(
        {
            "model_name": str(folder),
            "train_global_batch_size": 8,
            "train_micro_batch_size": 4,
            "optimizer": {"name": "torch.optim.SGD", "kwargs": {"lr": 0.1}},
            "generation": {"max_new_tokens": 10, "temperature": 0.8},
            **settings,
        }
    )
