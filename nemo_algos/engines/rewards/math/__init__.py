"""The reward of a mathematical answer: where it stands, how it is spelled, what it says, equality.

`latex_normalization` has the tables of spellings and reads units, `expressions` reads what is
written, `verifier` takes away what surrounds a box, and compares.
"""

from nemo_algos.engines.rewards.math.verifier import verify_math

__all__ = ["verify_math"]
