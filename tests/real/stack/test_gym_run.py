"""Whole runs whose rollouts NeMo Gym's own servers make: several turns, tools, penalties, parts.

What the model wrote is told here by the grammar of the chat template alone, and what a server had
to pay by the rows that Gym ships.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gym_by_turn
import gym_world
import gymnast
import psutil
import pytest
import torch
import transformers
from gym_world import END, INVALID, OFFICE, THOUGHT, WEATHER, World
from rehearsal import gym
from rehearsal.training import belongs_to
from runs import TIMEOUT, Env, Run
from torch import Tensor

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.surrogate import Counts
from nemo_algos.algorithms.kernel import Component
from nemo_algos.algorithms.loss import policy_loss
from nemo_algos.algorithms.rollouts import Rollouts

# v0.7.0's HTTP server is of an older vLLM than the stack's: vllm.entrypoints.serve.render
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("main_alone")]
CONFIG = Path(__file__).with_name("gym.yaml")
STEPS, ROLLOUTS, LONGEST, TURNS = 2, 32, 8, 3
INVALID_AT, MALFORMED_AT, LOW = -5.0, -2.0, -3.0
PENALTIES = (
    f"grpo.invalid_tool_call_advantage={INVALID_AT}",
    f"grpo.malformed_thinking_advantage={MALFORMED_AT}",
    f"grpo.advantage_clip_low={LOW}",
)


class Turn(NamedTuple):
    """What the model wrote in a row: the words, and where."""

    words: list[str]
    places: list[int]

    @property
    def calls(self) -> list[str]:
        """The words that the parser reads as calls: with one that is none, all are text."""
        good = [word for word in self.words if word.startswith("<tool_call>{")]
        return [] if INVALID in self.words else good


class Gym(Run):
    """A run with the servers of one world."""

    def __init__(self, place: tuple[Path, Env], name: str, world: World, *keys: str) -> None:
        above, env = place
        self.world = world
        self.packages = gym.build()
        model = above / world.server
        if not model.exists():
            gym_world.saved(world, self.packages, model)
        self.reader = transformers.AutoTokenizer.from_pretrained(model)
        servers = f"resources_servers/{world.server}/configs/{world.server}.yaml"
        agent = f"env.nemo_gym.{world.agent}.responses_api_agents.simple_agent"
        paths = f"responses_api_models/vllm_model/configs/vllm_model_for_training.yaml,{servers}"
        method, *others = keys
        prompts = min(len(self.rows()), 4)
        own = (
            f"--config={CONFIG}",
            f"env.nemo_gym.config_paths=[{paths}]",
            f"+{agent}.max_steps={TURNS}",
            f"data.train.data_path={model}/rows.jsonl",
            f"grpo.max_num_steps={STEPS}",
            f"grpo.num_prompts_per_step={prompts}",
            f"grpo.num_generations_per_prompt={ROLLOUTS // prompts}",
            f"policy.model_name={model}",
        )
        super().__init__(place, name, method)
        self.env = env
        self.overrides = (f"method.name={method}", *own, *others)

    def run(self, status: int = 0) -> "Gym":
        self.whole(status, program=Path(gymnast.__file__))
        return self

    def batches(self) -> list[dict[str, Tensor]]:
        """What each step trained on."""
        return [torch.load(self.folder / f"batch_{i + 1}.pt") for i in range(STEPS)]

    def turns(self, batch: dict[str, Tensor]) -> list[list[Turn]]:
        """Row by row, by the template: behind <assistant> to the end of the message, or LONGEST."""
        rows = zip(batch["input_ids"], batch["input_lengths"], strict=True)
        return [list(self._turns(*row)) for row in rows]

    def _turns(self, ids: Tensor, length: Tensor) -> Iterator[Turn]:
        words = self.reader.convert_ids_to_tokens(ids[: int(length)].tolist())
        place = 0
        while "<assistant>" in words[place:]:
            start = words.index("<assistant>", place) + 1
            place = start
            while place < min(len(words), start + LONGEST):
                place += 1
                if words[place - 1] == END:
                    break
            yield Turn(words[start:place], list(range(start, place)))

    def rows(self) -> list[dict[str, Any]]:
        return self.world.rows(self.packages)

    def row_of(self, ids: Tensor) -> dict[str, Any]:
        """The row that Gym ships whose question is in these tokens."""
        words = " ".join(self.reader.convert_ids_to_tokens(ids.tolist()))
        (row,) = (r for r in self.rows() if _question(r) in words)
        return row


def _question(row: dict[str, Any]) -> str:
    (asked,) = (m for m in row["responses_create_params"]["input"] if m["role"] == "user")
    return f"<user> {' '.join(asked['content'].split())} {END}"


def is_sound(run: Gym) -> None:
    """What holds for every run: masks, rewards, and a sampler that is the trainer."""
    assert max(run.curve("mismatch/max")) < 1e-4
    assert run.curve("turns_per_sample/max") == [TURNS] * STEPS
    assert min(run.curve("grad_norm")) > 0
    for batch in run.batches():
        wanted = torch.zeros_like(batch["token_mask"])
        assert len(wanted) == ROLLOUTS
        for i, turns in enumerate(run.turns(batch)):
            for turn in turns:
                wanted[i, turn.places] = 1
            row = run.row_of(batch["input_ids"][i])
            paid = run.world.reward([turn.calls for turn in turns], row)
            assert float(batch["rewards"][i]) == paid
        assert torch.equal(batch["token_mask"], wanted)
        assert batch["rewards"].unique().numel() > 1
        assert (batch["generation_logprobs"] != 0)[wanted == 0].sum() == 0


def penalty(turn: Turn) -> float | None:
    """What a turn gets that NeMo-RL marks: for a call that is none, or a tag without a call."""
    if INVALID in turn.words:
        return max(INVALID_AT, LOW)
    return max(MALFORMED_AT, LOW) if THOUGHT in turn.words and not turn.calls else None


def trains_on_its_own_advantages(run: Gym, method: str, penalised: bool = False) -> None:
    """The loss is the embedded engine's of the same rows, whose advantages are the method's."""
    algorithm = build(method)
    losses = []
    for batch in run.batches():
        mask = batch["token_mask"][:, 1:].bool()
        prev = batch["prev_logprobs"][:, 1:]
        rollouts = Rollouts(
            group=batch["group"],
            rewards=batch["rewards"],
            mask=mask,
            old_logprobs=prev,
            turn=None if (turn := batch.get("turn")) is None else turn[:, 1:],
            turn_rewards=batch.get("turn_rewards"),
            reward_parts={k[5:]: v for k, v in batch.items() if k.startswith("part ")} or None,
        )
        signals = algorithm.signals(rollouts, {})
        wanted = signals.advantages.float().expand(mask.shape).clone()
        if penalised:
            wanted = wanted.clamp(min=LOW)
            for i, turns in enumerate(run.turns(batch)):
                for turn in turns:
                    if (value := penalty(turn)) is not None:
                        wanted[i, [place - 1 for place in turn.places]] = value
        found = batch["advantages"][:, 1:]
        torch.testing.assert_close(found[mask], wanted[mask], rtol=1e-5, atol=1e-6)
        part = algorithm.advantages
        own = replace(part.method, per_token=part.method.per_token | {"advantages"})
        token_wise = replace(algorithm, advantages=Component(own, part.params))
        signals = replace(signals, advantages=wanted)
        counts = Counts.of(mask)
        losses.append(float(policy_loss(token_wise, prev, rollouts, signals, counts).value))
    assert run.curve("loss") == pytest.approx(losses, rel=1e-4, abs=1e-5)


@pytest.fixture(scope="module")
def servers(place: tuple[Path, Env]) -> tuple[Path, Env]:
    above, env = place
    return above, {**env, **gym.variables(above)}


def test_a_response_of_several_turns_has_penalties_for_its_messages(
    servers: tuple[Path, Env],
) -> None:
    run = Gym(servers, "penalised", WEATHER, "grpo", *PENALTIES).run()
    is_sound(run)
    trains_on_its_own_advantages(run, "grpo", penalised=True)
    assert sum(run.curve("num_invalid_tool_calls")) > 0
    assert sum(run.curve("num_malformed_thinking")) > 0  # few: a step may have none


def test_etr_at_the_office(servers: tuple[Path, Env]) -> None:
    run = Gym(servers, "office", OFFICE, "etr").run()
    is_sound(run)
    trains_on_its_own_advantages(run, "etr")
    assert min(run.curve("etr/radius_positive")) > 0.2
    traced = (run.folder / "logs" / "gym").glob("exp_*/trace.jsonl")
    assert len(next(traced).read_text().splitlines()) > STEPS


def test_erpo_reads_entropies_of_several_turns(servers: tuple[Path, Env]) -> None:
    run = Gym(servers, "erpo", WEATHER, "erpo").run()
    is_sound(run)
    assert all(0 <= share <= 1 for share in run.curve("erpo/gate_open_share"))


def test_gdpo_gets_the_parts_that_the_server_gives(servers: tuple[Path, Env]) -> None:
    run = Gym(servers, "parts", WEATHER, "gdpo").run()
    is_sound(run)
    trains_on_its_own_advantages(run, "gdpo")
    for batch in run.batches():
        parts = {key[5:]: value for key, value in batch.items() if key.startswith("part ")}
        assert set(parts) == {"correctness", "format", "schema_valid"}
        assert torch.equal(sum(parts.values()), batch["rewards"])  # pyright: ignore


class ByTurn(World):
    """The server of `gym_by_turn.py`, which pays each turn by itself."""

    def reward(self, calls: list[list[str]], row: dict[str, Any]) -> float:
        return sum(self.by_turn(calls, row))

    def by_turn(self, calls: list[list[str]], row: dict[str, Any]) -> list[float]:
        right = self.call(row)
        paid = [gym_by_turn.RIGHT if right in turn else gym_by_turn.ANY for turn in calls]
        return [one if turn else 0.0 for one, turn in zip(paid, calls, strict=True)]


def test_each_turn_has_its_own_return(servers: tuple[Path, Env]) -> None:
    """RLOO by turn, by hand: the return from a turn on, less the others' from it or their last."""
    world = ByTurn(*WEATHER)
    folder = gym.build() / "resources_servers" / world.server
    entry = os.path.relpath(gym_by_turn.__file__, folder)
    key = f"env.nemo_gym.{world.server}.resources_servers.{world.server}.entrypoint"
    run = Gym(servers, "turns", world, "turn_rloo", f"+{key}={entry}").run()
    is_sound(run)
    trains_on_its_own_advantages(run, "turn_rloo")
    for batch in run.batches():
        turns = run.turns(batch)
        rows = [run.row_of(ids) for ids in batch["input_ids"]]
        calls = [[turn.calls for turn in row] for row in turns]
        paid = [world.by_turn(*pair) for pair in zip(calls, rows, strict=True)]
        assert {len(row) for row in paid} == {1, 2, 3} and len({*map(tuple, paid)}) > 4
        for i, row in enumerate(turns):
            others = (batch["group"] == batch["group"][i]).nonzero().flatten().tolist()
            others.remove(i)
            for k, turn in enumerate(row):
                stand = [sum(paid[j][min(k, len(paid[j]) - 1) :]) for j in others]
                wanted = sum(paid[i][k:]) - sum(stand) / len(stand)
                found = batch["advantages"][i, turn.places]
                torch.testing.assert_close(
                    found, torch.full_like(found, wanted), rtol=1e-5, atol=1e-6
                )


def test_a_server_that_dies_ends_the_run_with_a_sentence(servers: tuple[Path, Env]) -> None:
    run = Gym(servers, "dead", OFFICE, "quatro", "grpo.max_num_steps=50")
    attempt = run.start(program=Path(gymnast.__file__))
    reached = attempt.reaches(run.folder / "batch_1.pt", TIMEOUT)
    servers_here = (
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] == ["python", "app.py"] and belongs_to(process, servers[0])
    )
    for process in servers_here:
        if process.environ().get("NEMO_GYM_CONFIG_PATH") == OFFICE.server:
            process.kill()
    status = attempt.ended(TIMEOUT)
    said = run.said()
    assert reached and status == 1, said[-20_000:]
    assert "NeMo Gym makes no more rollouts" in said
    assert f"`{OFFICE.server}` finished unexpectedly" in said
