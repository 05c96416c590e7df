"""Runs a program that nobody trusts, and asks it questions.

    judge (the pool's worker)                      trusted: holds the tests and the answers
      | control socket
    zygote.py (one per judge, in namespaces)       trusted, holds no secret
      | fork per program, kill after it
    candidate.py                                   the untrusted program, locked down (lockdown.py)

Tests run in the judge and talk to the program over a socket (program.py) in plain data (plain.py):
nothing that a program does to its own process decides how they are compared. What tests ask of an
object of the program's own (`in`, `len`, an attribute), the program answers.
"""

from nemo_algos.engines.execution.sandbox.program import Handle, Program, Sandbox, SandboxError

__all__ = ["Handle", "Program", "Sandbox", "SandboxError"]
