"""The reward of a program that a SandboxFusion server runs, where this machine must not."""

import json
import os
import secrets

import httpx

from nemo_algos.engines.execution.code import SCRIPT, SECONDS, program_of

URL = "NEMO_ALGOS_SANDBOX_URL"
REPLY_SECONDS = 10.0  # for the server's queue and the network, beyond the program's time


def verify_code_remote(response: str, answer: str) -> float:
    """1.0 where the program in `response` passes the tests on the server, else 0.0.

    `answer` as for `verify_code`; the server is at the URL in NEMO_ALGOS_SANDBOX_URL. It runs
    program and tests in one process, so a program that means to can fake a pass: see
    sandbox/README.md.

    Raises ValueError where the variable is not set or the program is to read stdin, TimeoutError
    where it took too long, RuntimeError where the server failed, httpx.HTTPError where it cannot be
    reached or refuses.
    """
    if not os.environ.get(URL):
        raise ValueError(f"{URL} is not set. Set it to the address of a SandboxFusion server.")
    problem = json.loads(answer)
    if problem["entry_point"] == SCRIPT:
        raise ValueError(
            "This verifier cannot judge programs that read stdin. Use the verifier `code`."
        )
    seconds = problem.get("seconds", SECONDS)
    # Leaving early, with sys.exit(0) say, would look like success.
    proof = secrets.token_hex()
    sources = program_of(response, problem["prompt"], problem["entry_point"])
    code = "\n\n".join([*sources, problem["tests"], f"print({proof!r})"])
    reply = httpx.post(
        f"{os.environ[URL].rstrip('/')}/run_code",
        json={"code": code, "language": "python", "run_timeout": seconds},
        timeout=seconds + REPLY_SECONDS,
    )
    reply.raise_for_status()
    outcome = reply.json()
    result = outcome.get("run_result") or {}
    if outcome.get("status") not in ("Success", "Failed") or not result:
        raise RuntimeError(f"The sandbox server failed: {outcome.get('message', '')[:200]}")
    if result["status"] == "TimeLimitExceeded":
        raise TimeoutError("The program took too long.")
    printed = (result["stdout"] or "").rstrip()
    return float(outcome["status"] == "Success" and printed.endswith(proof))
