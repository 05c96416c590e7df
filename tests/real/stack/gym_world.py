"""Two of NeMo Gym's own environments, and a tiny model that calls their tools.

Each word that the model says is one token, and a call of a tool is one word: the text that vLLM's
parser `hermes` reads. A marked message holds a call that is none, or a tag of thoughts.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers

ROLES = ("system", "developer", "user", "tool", "assistant")
END = "<eos>"
INVALID = "<tool_call>oops</tool_call>"  # no JSON: parsed as text, and marked by NeMo-RL
THOUGHT = "</think>"
IDLE = ("so", "then")
CHAT = (
    "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] or '' }}"
    "{% for c in m['tool_calls'] or [] %} a call{% endfor %} <eos> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)


class World(NamedTuple):
    """An environment: its server, and rows of the file that Gym ships.

    wanted: the key of a row that names the right calls; kept: which rows; beside: words that the
    model says too.
    """

    server: str
    wanted: str
    kept: slice
    beside: tuple[str, ...]

    @property
    def agent(self) -> str:
        """The name of its agent in Gym's config."""
        return f"{self.server}_simple_agent"

    def rows(self, packages: Path) -> list[dict[str, Any]]:
        """Gym's own, by its own agent."""
        file = packages / "resources_servers" / self.server / "data" / "example.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        agent = {"type": "responses_api_agents", "name": self.agent}
        return [{**row, "agent_ref": agent} for row in rows[self.kept]]

    def reward(self, calls: list[list[str]], row: dict[str, Any]) -> float:
        """What the server pays for the calls of each turn."""
        several = row["responses_create_params"].get("parallel_tool_calls", True)
        made = [call for turn in calls for call in (turn if several else turn[:1])]
        right = self.call(row)
        if self == WEATHER:  # a point for a call as its schema has it, one for the right one
            return float(bool(made)) + float(right in made)
        return float(right in made)  # twice is as once, and the other call changes nothing

    def call(self, row: dict[str, Any]) -> str:
        """The word that makes the right calls, all of them."""
        wanted = row[self.wanted]
        return "".join(map(_call, wanted if isinstance(wanted, list) else [wanted]))


def _call(call: dict[str, Any]) -> str:
    arguments = call["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return f"<tool_call>{json.dumps({'name': call['name'], 'arguments': arguments})}</tool_call>"


WEATHER = World("example_tool_call_multireward", "expected_call", slice(5), (INVALID, THOUGHT))
LOOK = _call({"name": "company_directory_find_email_address", "arguments": {"name": "carlos"}})
OFFICE = World("workplace_assistant", "ground_truth", slice(1, 2), (LOOK,))


def said(world: World, packages: Path) -> list[str]:
    """The words that the model says, with probabilities near one another."""
    calls = [world.call(row) for row in world.rows(packages)]
    return [END, *IDLE, *world.beside, *dict.fromkeys(calls)]


def saved(world: World, packages: Path, folder: Path) -> Path:
    """The model, its tokenizer, and the rows as a data set, in a folder."""
    rows = world.rows(packages)
    heard = dict.fromkeys(word for row in rows for word in _words(row))
    spoken = said(world, packages)
    roles = [f"<{role}>" for role in ROLES]
    words = ["<pad>", END, "<unk>", *roles, *spoken[1:]]
    words += [word for word in heard if word not in words]
    model = tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    plain.add_tokens([tokenizers.AddedToken(w, normalized=False) for w in (*roles, *spoken[3:])])
    reader = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token=END, unk_token="<unk>"
    )
    reader.chat_template = CHAT
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(config(len(words)))
    with torch.no_grad():  # a direction that every state has: along it, other words are not said
        made.get_input_embeddings().weight[:, 0] = 4.0
        made.lm_head.weight[:, 0] = -3.0
        made.lm_head.weight[reader.convert_tokens_to_ids(spoken), 0] = 0.0
    made.save_pretrained(folder)
    reader.save_pretrained(folder)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _words(row: dict[str, Any]) -> Iterator[str]:
    for message in row["responses_create_params"]["input"]:
        yield from str(message["content"]).split()


def config(words: int) -> transformers.LlamaConfig:
    """Two layers."""
    return transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.1,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
