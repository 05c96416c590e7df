"""Runs a program that nobody trusts, and asks it questions.

    judge (the pool's worker)                      trusted: holds the tests and the answers
      | control socket
    zygote.py (one per judge, in namespaces)       trusted, holds no secret
      | fork per program, kill after it
    candidate.py                                   the untrusted program, locked down (lockdown.py)

Tests run in the judge and talk to the program over a socket (program.py) in plain data (plain.py):
nothing that a program does to its own process can make a test pass but right values.
"""

from nemo_algos.rewards.sandbox.host import Sandbox
from nemo_algos.rewards.sandbox.program import Handle, Program, SandboxError

__all__ = ["Handle", "Program", "Sandbox", "SandboxError"]
