"""Verifiers that turn (response, gold answer) into a reward, and the processes that run them.

A verifier is any function `(response: str, answer: str) -> float`, or of what else it names (see
`function.py`), named to the pool as "module:function", or by a short name of ours (`math`). No
verifier is imported here: each worker process imports this package when it starts, and should pay
for its own verifier only.
"""

from nemo_algos.engines.rewards.pool import Unjudged, Verdict, VerifierPool

__all__ = ["Unjudged", "Verdict", "VerifierPool"]
