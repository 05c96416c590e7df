"""Facts of a model that decide where it fits: of its config.json, or the shipped models.yaml."""

import functools
import json
import os.path
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from nemo_algos.config import did_you_mean

MOST = 10**9  # of any number here
Size = Annotated[int, Field(ge=1, le=MOST)]
Count = Annotated[int, Field(ge=0, le=MOST)]


class Model(BaseModel):
    """A decoder-only transformer, by config.json's names; `attention` to `expert`: parameters."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    num_hidden_layers: Size
    hidden_size: Size
    num_attention_heads: Size
    num_key_value_heads: Count = 0
    head_dim: Count | None = None
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    experts: Count = Field(
        default=0,
        validation_alias=AliasChoices("num_experts", "n_routed_experts", "num_local_experts"),
    )
    shared_experts: Count = Field(default=0, validation_alias="n_shared_experts")
    experts_per_token: Count = Field(default=0, validation_alias="num_experts_per_tok")
    moe_intermediate_size: Count = 0
    dense_layers: Count = Field(default=0, validation_alias="first_k_dense_replace")
    q_lora_rank: Count | None = None  # of multi-head latent attention, as the four below
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count = 0
    qk_rope_head_dim: Count = 0
    v_head_dim: Count = 0

    @property
    def kv_heads(self) -> int:
        """Query groups of the attention."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def tied(self) -> bool | None:
        """Whether the output layer is the embeddings; None where the config does not say."""
        return self.tie_word_embeddings if "tie_word_embeddings" in self.model_fields_set else None

    @property
    def head_size(self) -> int:
        """Numbers of a query's head."""
        if self.kv_lora_rank:
            return self.qk_nope_head_dim + self.qk_rope_head_dim
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def kv_numbers(self) -> int:
        """Numbers that the KV cache keeps per token and layer."""
        if self.kv_lora_rank:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.kv_heads * self.head_size

    @property
    def attention(self) -> int:
        """Query, key, value and output of a layer."""
        h, heads, size = self.hidden_size, self.num_attention_heads, self.head_size
        if self.kv_lora_rank:
            query = self.q_lora_rank or 0
            q = h * query + query * heads * size if query else h * heads * size
            down = h * (self.kv_lora_rank + self.qk_rope_head_dim)
            up = self.kv_lora_rank * heads * (self.qk_nope_head_dim + self.v_head_dim)
            return q + down + up + heads * self.v_head_dim * h
        q_and_kv = (heads + 2 * self.kv_heads) * size
        return h * (q_and_kv + heads * size) + (q_and_kv if self.attention_bias else 0)

    @property
    def dense_mlp(self) -> int:
        """Gate, up and down of a dense layer."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def expert(self) -> int:
        """Gate, up and down of one expert."""
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.num_hidden_layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> int:
        """All of them, norms apart."""
        return self._with(self.experts)

    @property
    def active_parameters(self) -> int:
        """Those that a token meets."""
        return self._with(self.experts_per_token)

    def _with(self, experts: int) -> int:
        layers, moe = self.num_hidden_layers, self.moe_layers
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        router = self.hidden_size * self.experts
        of_moe = moe * ((experts + self.shared_experts) * self.expert + router)
        return embeddings + layers * self.attention + (layers - moe) * self.dense_mlp + of_moe


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The shipped facts by model name."""
    return yaml.safe_load((Path(__file__).parent / "models.yaml").read_text())


def model(name: str) -> Model:
    """By name in the table, or by folder or path of a config.json. Raises ValueError for others."""
    path = os.path.join(name, "config.json") if os.path.isdir(name) else name
    if os.path.isfile(path):
        facts = json.loads(Path(path).read_text())
        if not isinstance(facts, dict):
            raise ValueError(f"{path} must hold a section of key: value pairs")
        return Model.model_validate(facts.get("text_config", facts))
    if name not in table():
        near = did_you_mean(name, sorted(table()))
        hint = "name a folder with its config.json"
        raise ValueError(f"the facts of {name} are not known here{near}: {hint}")
    return Model.model_validate({"tie_word_embeddings": False, **table()[name]})
