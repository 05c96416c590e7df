"""verify_code_remote, against a server that answers as SandboxFusion's /run_code does."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from nemo_algos.engines.rewards import VerifierPool
from nemo_algos.lab.rewards.remote import verify_code_remote

ANSWER = json.dumps(
    {"prompt": "ONE = 1\n", "entry_point": "f", "tests": "assert f(1) == 1 + ONE", "seconds": 1}
)
RIGHT = "```python\ndef f(x):\n    return x + ONE\n```"


class Handler(BaseHTTPRequestHandler):
    """Runs the code; `server.reply` replaces what it would say, `server.asked` is what it was."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked = {"path": self.path} | asked
        status, reply = self.server.reply or (200, run(asked))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def log_message(self, *_):
        pass


def run(asked):
    command = [sys.executable, "-c", asked["code"]]
    try:
        done = subprocess.run(command, capture_output=True, timeout=asked["run_timeout"], text=True)
    except subprocess.TimeoutExpired:
        return reply("Failed", "TimeLimitExceeded")
    return reply("Failed" if done.returncode else "Success", "Finished", done.stdout)


def reply(status, run_status, stdout="", message=""):
    result = {"status": run_status, "return_code": 0, "stdout": stdout, "stderr": ""}
    return {"status": status, "message": message, "compile_result": None, "run_result": result}


@pytest.fixture
def server(monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.reply = None
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        monkeypatch.setenv("NEMO_ALGOS_SANDBOX_URL", f"http://127.0.0.1:{server.server_port}/")
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (RIGHT, 1.0),
        ("def f(x): return x", 0.0),
        ("def f(x): 1 / 0", 0.0),
        ("import sys\ndef f(x): sys.exit(0)", 0.0),
        ("import os\ndef f(x): os._exit(0)", 0.0),
        ("no code", 0.0),
    ],
)
def test_reward(server, response, reward):
    assert verify_code_remote(response, ANSWER) == reward


def test_request(server):
    verify_code_remote(RIGHT, ANSWER)
    asked = server.asked
    assert (asked["path"], asked["language"], asked["run_timeout"]) == ("/run_code", "python", 1)
    assert asked["code"].startswith("ONE = 1\n\n\ndef f(x):\n    return x + ONE\n")


def test_late_program(server):
    with pytest.raises(TimeoutError):
        verify_code_remote("def f(x):\n    while True: pass", ANSWER)


@pytest.mark.parametrize(
    ("answered", "error"),
    [
        ((500, {}), httpx.HTTPStatusError),
        ((404, {}), httpx.HTTPStatusError),
        ((200, reply("SandboxError", "Error", message="no space left")), RuntimeError),
        ((200, {"status": "Success", "message": "", "run_result": None}), RuntimeError),
        ((200, {}), RuntimeError),
    ],
)
def test_failure_of_the_server_is_no_verdict(server, answered, error):
    server.reply = answered
    with pytest.raises(error):
        verify_code_remote(RIGHT, ANSWER)


def test_no_server(monkeypatch):
    monkeypatch.setenv("NEMO_ALGOS_SANDBOX_URL", "http://127.0.0.1:9")
    with pytest.raises(httpx.ConnectError):
        verify_code_remote(RIGHT, ANSWER)
    monkeypatch.delenv("NEMO_ALGOS_SANDBOX_URL")
    with pytest.raises(ValueError, match="NEMO_ALGOS_SANDBOX_URL"):
        verify_code_remote(RIGHT, ANSWER)


def test_pool_counts_failures_as_errors(server):
    with VerifierPool("nemo_algos.lab.rewards.remote:verify_code_remote") as pool:
        good = pool.score([RIGHT], [ANSWER])
        server.reply = (503, {})
        bad = pool.score([RIGHT], [ANSWER])
    assert (good[0].reward, good[0].status) == (1.0, "ok")
    assert (bad[0].reward, bad[0].status) == (0.0, "error")
