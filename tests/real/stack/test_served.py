"""`nemo-algos eval` against a real `vllm serve`, which runs as it is: without the shims."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import models
import pytest
import torch
import whole_run
from cpu_task import tokenizer
from trainer import Sampled, Trainer

pytestmark = pytest.mark.slow
PROBLEMS = {"t9 t10": "t11", "t20 t21 t22": "t23", "t40 t41": "t42"}
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
# a free port that later servers take again
with socket.socket() as _free:
    _free.bind(("127.0.0.1", 0))
    PORT = _free.getsockname()[1]
URL = f"http://127.0.0.1:{PORT}"
OURS = ("PYTHONPATH", "VIRTUAL_ENV", "NEMO_CPU_SOCKET")
STARTS_WITHIN = 900  # seconds, on a busy machine


class Served:
    """`vllm serve` in a process group of its own."""

    def __init__(self, model: Path, log: Path) -> None:
        (model / "chat.jinja").write_text(TEMPLATE)
        options = (
            f"--port {PORT} --max-model-len 128 --max-num-seqs 16 --dtype float32 --enforce-eager"
        )
        memory = "--gpu-memory-utilization 0.3 --host 127.0.0.1 --served-model-name tiny"
        self.process = subprocess.Popen(
            [
                *(Path(sys.prefix) / "bin" / "vllm", "serve", model, *options.split()),
                *(*memory.split(), "--chat-template", model / "chat.jinja"),
            ],
            env={k: v for k, v in os.environ.items() if k not in OURS},
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        end = time.monotonic() + STARTS_WITHIN
        while not self._healthy():
            assert self.process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{URL}/health").is_success
        except httpx.TransportError:
            return False

    @property
    def answered(self) -> int:
        """Requests, by the server's own count."""
        lines = httpx.get(f"{URL}/metrics").text.splitlines()
        counts = [x for x in lines if x.startswith("vllm:request_success_total")]
        return round(sum(float(line.rsplit(" ", 1)[1]) for line in counts))

    def kill(self) -> None:
        """All of its processes, as a machine's death does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.saved("llama", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    """The one that runs, last in the list."""
    servers = [Served(model, tmp_path_factory.mktemp("first") / "log")]
    yield servers
    if servers[-1].process.poll() is None:
        servers[-1].kill()


def evaluation(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """The command in the project's own environment, which has no vLLM."""
    rows = [{"problem": p, "answer": a} for p, a in PROBLEMS.items()]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"engine": "endpoint", "url": f"{URL}/v1", "name": "tiny", "retries": 1},
        "benchmarks": {"math": {"data": str(folder / "words.jsonl")}},
        "sampling": {"samples": 4, "max_tokens": 8, "logprobs": True},
        "metrics": {"similarities": ["tfidf"], "resamples": 50},
        "out": str(folder / "out"),
    }
    config["model"] |= {"extra": {"skip_special_tokens": False}, "concurrency": 4}
    (folder / "eval.yaml").write_text(json.dumps(config))
    command = ["uv", "run", "--project", whole_run.ROOT, "nemo-algos", "eval"]
    return subprocess.Popen(
        [*command, folder / "eval.yaml", *overrides],
        env={k: v for k, v in os.environ.items() if k not in OURS},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str], status: int = 0) -> str:
    output, _ = process.communicate()
    assert process.returncode == status, output
    return output


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "out/math/generations.jsonl"
    whole = (
        [x for x in path.read_text().splitlines(True) if x.endswith("\n")] if path.exists() else []
    )
    return [json.loads(line) for line in whole]


def asked(folder: Path) -> dict[str, str]:
    """Each problem's prompt, by its id."""
    rows = (folder / "out/math/problems.jsonl").read_text().splitlines()
    return {row["id"]: row["prompt"] for row in map(json.loads, rows)}


@pytest.mark.parametrize("completions", ["", "{prompt}"], ids=["chat", "completions"])
def test_responses_and_their_log_probs(
    completions: str, served: list[Served], model: Path, tmp_path: Path
) -> None:
    """Greedy and sampled; the log-probs are transformers' of the same tokens."""
    override = f"model.completions={json.dumps(completions)}"
    before = served[-1].answered
    finished(evaluation(tmp_path, override))
    stored = lines(tmp_path)
    assert len(stored) == served[-1].answered - before == 12
    trainer, encode, prompts = Trainer(model), tokenizer().encode, asked(tmp_path)
    for row in stored:
        assert len(row["logprobs"]) == row["tokens"] <= 8
        ids = encode(row["response"])
        ids += [1] * (row["tokens"] - len(ids))  # an end that is not of the text
        sampled = Sampled(encode(prompts[row["problem"]]), ids, torch.tensor(row["logprobs"]))
        assert (trainer.logprobs(sampled, 1.0) - sampled.logprobs).abs().max() < 1e-3
    finished(evaluation(tmp_path, override))
    assert served[-1].answered - before == 12 and lines(tmp_path) == stored


def test_a_new_server_is_asked_for_what_the_dead_one_has_not_answered(
    served: list[Served], model: Path, tmp_path: Path
) -> None:
    samples = 64
    process = evaluation(tmp_path, f"sampling.samples={samples}")
    while len(lines(tmp_path)) < 12:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    served[-1].kill()
    assert "again" in finished(process, 2)
    stored = lines(tmp_path)
    assert 12 <= len(stored) < 3 * samples
    served.append(Served(model, tmp_path / "log"))
    finished(evaluation(tmp_path, f"sampling.samples={samples}"))
    assert served[-1].answered == 3 * samples - len(stored)
    every = lines(tmp_path)
    assert every[: len(stored)] == stored
    assert len({(row["problem"], row["sample"]) for row in every}) == len(every) == 3 * samples


def test_a_live_sampler_is_probed(served: list[Served], model: Path, tmp_path: Path) -> None:
    """A file of its own trainer's; the server's log-probs are before the sampling parameters."""
    trainer, ids = Trainer(model), torch.randint(8, 64, (16, 40)).tolist()
    scored = [trainer.logprobs(Sampled(row[:10], row[10:], torch.zeros(0)), 1.0) for row in ids]
    rows = [
        {
            "tokens": row,
            "mask": [0] * 10 + [1] * 30,
            "prompt_length": 10,
            "sampler_logprobs": [0.0] * 10 + found.tolist(),
            "trainer_logprobs": [0.0] * 10 + found.tolist(),
        }
        for row, found in zip(ids, scored, strict=True)
    ]
    file = tmp_path / "step.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["uv", "run", "--project", whole_run.ROOT, "nemo-algos", "mismatch", file]
    done = subprocess.run(
        [*command, "--sampler", f"{URL}/v1", "--json"],
        env={k: v for k, v in os.environ.items() if k not in OURS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = {probe["probe"]: probe for probe in json.loads(done.stdout)["probes"]}
    assert {*seen} == {"recorded", "batch", "prefix_cache", "logprobs_mode", "defaults"}
    assert not [name for name, probe in seen.items() if probe["fault"]], seen
    assert "temperature 0.50" not in seen["logprobs_mode"]["text"].partition("asked")[0]
    assert "of 1.00" in seen["logprobs_mode"]["text"]
