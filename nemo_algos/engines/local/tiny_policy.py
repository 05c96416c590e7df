"""The countdown model as a policy: its own cached sampling, shared prompts, warm start.

`SeparateSampler` is another model than the trainer's, which samples in its place.
"""

import hashlib
import inspect
import json
import os
import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_algos.algorithms.core.entropy import token_logprobs_and_entropy
from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.prompts import Asked
from nemo_algos.engines.local import tiny
from nemo_algos.engines.local.experience import Experience
from nemo_algos.engines.local.low_precision import exact
from nemo_algos.engines.local.sampling import Rows, decode, unpack
from nemo_algos.engines.local.schema import GenerationSection, Shape

WARM_STEPS = 700
WARM_BATCH = 64
WARM_LR = 4e-3


class TinyPolicy:
    """A `Tiny` model and how it samples. replays: it scores tokens on the sampler's experts."""

    def __init__(
        self, model: tiny.Tiny, sampling: GenerationSection, replays: bool = False
    ) -> None:
        self.model = model
        self.sampling = sampling
        self.ends = {countdown.EOS}
        self.replays = replays

    @torch.no_grad()
    def generate(
        self, prompts: list[list[int]], group_size: int, generator: torch.Generator
    ) -> Experience:
        """See Policy. The cached decode equals the training forward to 1e-5: no second forward.

        Responses to a prompt that have begun alike are one row of the model until they part.
        """
        device = self.model.embed.weight.device
        vocab = self.model.embed.num_embeddings
        ids = torch.tensor(prompts)
        group = torch.arange(len(prompts)).repeat_interleave(group_size)
        hidden, cache = self.model.prompt(ids.to(device))
        row = group.to(device)

        def next_rows(drawn: Tensor) -> Rows:
            nonlocal row, cache
            distinct, row = (row * vocab + drawn).unique(return_inverse=True)
            hidden, cache = self.model.step(distinct % vocab, distinct // vocab, cache)
            return self.model.logits(hidden), row

        first = self.model.logits(hidden), row
        sampled = decode(first, next_rows, self.ends, countdown.PAD, self.sampling, generator)
        *columns, support, likeliest, top = (x.cpu() for x in sampled)
        all_shown = torch.ones_like(ids).bool()
        routes = torch.stack([of_layer for *_, of_layer in cache], 2)[row].cpu()
        drawn = Experience(ids, all_shown, group, *columns, routed_experts=routes)
        if self.sampling.top_logprobs:
            drawn = replace(drawn, likeliest=likeliest, likeliest_logprobs=top)
        if self.sampling.support_replay:
            return replace(drawn, support=support)
        return drawn

    def logprobs(self, experience: Experience, rows: Tensor) -> Tensor:
        logits, tokens, row, kept, _ = self._logits(experience, rows)
        narrow = logits if kept is None else logits.where(kept, -torch.inf)
        return token_logprobs(narrow / self.sampling.temperature, tokens).cpu()[row]

    def logprobs_and_entropy(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.score(experience, rows)[:2]

    def logprobs_and_heads(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See Policy."""
        assert experience.likeliest is not None
        logits, _, row, *_ = self._logits(experience, rows)
        full = (logits / self.sampling.temperature).log_softmax(-1).cpu()[row]
        picked = torch.cat((experience.tokens[rows][..., None], experience.likeliest[rows]), -1)
        logprobs = full.gather(-1, picked)
        return logprobs[..., 0], logprobs[..., 1:]

    def score(self, experience: Experience, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As logprobs_and_entropy; and the routers' experts [N,L+S-1,layers,K]."""
        logits, tokens, row, kept, routes = self._logits(experience, rows)
        temperature = self.sampling.temperature
        scored = token_logprobs_and_entropy(logits, tokens, temperature, kept=kept)
        return scored[0].cpu()[row], scored[1].cpu()[row], routes.cpu()[row]

    def _logits(
        self, experience: Experience, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
        """Logits [D,S,V] and tokens [D,S] of distinct responses; the one that each row [N] is.

        And the tokens [D,S,V] that the sampler kept, where they are replayed; and the routers'
        experts [D,L+S-1,layers,K], whether or not others are replayed.
        """
        device = self.model.embed.weight.device
        responses = torch.cat((experience.group[rows, None], experience.tokens[rows]), 1)
        distinct, row = responses.unique(dim=0, return_inverse=True)
        used, group = distinct[:, 0].unique(return_inverse=True)
        prompts = experience.prompts[used].to(device)
        tokens = distinct[:, 1:].to(device)
        replayed = None
        kept = None
        any_row = torch.empty(len(distinct), dtype=torch.long).scatter(0, row, rows)
        if self.replays and experience.routed_experts is not None:  # alike where responses are
            replayed = experience.routed_experts[any_row].to(device)
        logits, routes = self.model.routed_logits(prompts, group.to(device), tokens, replayed)
        if experience.support is not None:
            kept = unpack(experience.support[any_row].to(device), logits.shape[-1])
        return logits, tokens, row, kept, routes

    def tree_width(self, experience: Experience) -> int:
        """See Policy. It shares prompts itself."""
        return 0

    def encode(self, prompt: Asked, prefix: str = "") -> list[int]:
        """See Policy. Raises ValueError for a word that is not countdown's."""
        texts = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt]
        try:
            return [countdown.TOKEN[word] for word in " ".join([*texts, prefix]).split()]
        except KeyError as error:
            raise ValueError(
                f"the countdown model does not know {error}. Use it for countdown only."
            ) from None

    @property
    def words(self) -> list[int]:
        return [t for t in countdown.TOKEN.values() if t not in (countdown.EOS, countdown.PAD)]

    def ids(self, text: str) -> list[int]:
        return self.encode(text)

    def text(self, tokens: list[int]) -> str:
        return countdown.decode([t for t in tokens if t != countdown.EOS])

    def decode(self, tokens: list[int]) -> str:
        return countdown.decode(tokens)

    def save(self, folder: str) -> None:
        from safetensors.torch import save_file

        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        save_file(tiny.hf_state(self.model), path / "model.safetensors", metadata={"format": "pt"})
        config = json.dumps(tiny.hf_config(self.model.shape), indent=2)
        (path / "config.json").write_text(config)
        _tokenizer().save_pretrained(path)


def _tokenizer() -> Any:
    """Countdown's words for transformers; a conversation is its messages' words, one by one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(countdown.TOKEN, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,  # or " ," becomes ","
        chat_template="{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}",
    )


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax at the tokens: logits [B,S,V], tokens [B,S] -> [B,S]."""
    losses = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    return -losses.view_as(tokens)


def warm_start(
    rules: countdown.Rules,
    seed: int,
    progress: Callable[[float], None],
    shape: Shape = Shape(),
    steps: int | None = None,
    device: str = "cpu",
) -> tiny.Tiny:
    """A model on the CPU, taught by so many steps on right responses (WARM_STEPS where unsaid).

    Cached by a hash of all that made it, in $NEMO_ALGOS_CACHE, else in nemo_algos below the user's
    cache directory; progress(share) is called as it goes.
    """
    steps = steps or WARM_STEPS
    family = inspect.getmodule(puzzles.FAMILIES[rules.family].draw)
    assert family
    sources = (inspect.getsource(code) for code in (countdown, puzzles, family, tiny, _teach))
    numbers = (shape, rules, seed, steps, WARM_BATCH, WARM_LR, torch.__version__, device)
    recipe = "\n".join(map(str, (*sources, *numbers)))
    name = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("NEMO_ALGOS_CACHE") or Path(base) / "nemo_algos")
    path = folder / f"{rules.family}-{rules.numbers}-{name}.pt"
    model = tiny.Tiny(shape)
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = tiny.Tiny(shape).to(device)
        _teach(model, rules, random.Random(seed), steps, progress)
    model.to("cpu")
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    torch.save(model.state_dict(), partial)
    partial.replace(path)
    return model


def _teach(
    model: tiny.Tiny,
    rules: countdown.Rules,
    rng: random.Random,
    steps: int,
    progress: Callable[[float], None],
) -> None:
    # Adam's rate for a width follows from another's by 1 / width (muP, arXiv 2203.03466)
    rate = WARM_LR * min(1.0, Shape().width / model.shape.width)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.01)
    device = model.embed.weight.device
    group = torch.arange(WARM_BATCH, device=device)
    for step in range(steps):
        batch = [puzzles.sample(rng, rules) for _ in range(WARM_BATCH)]
        prompts = torch.tensor([countdown.tokens_of(f"{puzzle} :")[:-1] for puzzle, _ in batch])
        responses = [torch.tensor(response) for _, response in batch]
        tokens = pad_sequence(responses, batch_first=True, padding_value=countdown.PAD).to(device)
        logits = model.response_logits(prompts.to(device), group, tokens)
        logprobs = token_logprobs(logits, tokens)
        loss = -logprobs[tokens != countdown.PAD].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        decay = min(1.0, (steps - step) / (0.7 * steps))  # constant 30 %, then to 0
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50) * decay
        optimizer.step()
        progress((step + 1) / steps)


class SeparateSampler(TinyPolicy):
    """A float32 copy of a policy, which samples in its place with the weights of the last update.

    Old log-probs and entropies are the policy's own, gen_logprobs those of the copy.
    """

    def __init__(self, trained: TinyPolicy) -> None:
        super().__init__(deepcopy(trained.model), trained.sampling)
        exact(self.model)
        self.trained = trained

    @torch.no_grad()
    def generate(
        self, prompts: list[list[int]], group_size: int, generator: torch.Generator
    ) -> Experience:
        self.refit()
        drawn = super().generate(prompts, group_size, generator)
        *scored, experts = self.trained.score(drawn, torch.arange(len(drawn.group)))
        logprobs, entropy = (x.where(drawn.mask, 0.0) for x in scored)
        moved = {"mismatch/routes": _rerouted_share(drawn, experts)} if experts.shape[-1] else {}
        return replace(drawn, logprobs=logprobs, entropy=entropy, distances=moved)

    def refit(self) -> None:
        self.model.load_state_dict(self.trained.model.state_dict())


def _rerouted_share(drawn: Experience, experts: Tensor) -> float:
    """The share of tokens and layers that the trainer's routers send elsewhere: to `experts`."""
    assert drawn.routed_experts is not None
    differ = (drawn.routed_experts.sort().values != experts.sort().values).any(-1)
    read = torch.cat((drawn.prompt_mask[drawn.group], drawn.mask[:, 1:]), 1)
    return float(differ[read].double().mean())
