"""The reward of a mathematical answer: where it stands, how it is spelled, what it says, equality.

`markup` takes away what surrounds a box, `spelling` has the tables of spellings, `expressions` and
`units` read what is written, `verifier` compares.
"""

from nemo_algos.engines.rewards.math.verifier import verify_math

__all__ = ["verify_math"]
