"""The reward of a mathematical answer: where it stands, how it is spelled, what it says, equality.

`latex_normalization` has the tables of spellings and reads units, `words` those of numbers and
other words, `expressions` reads what is written, `verifier` takes away what surrounds a box, brings
both answers to the same terms, and compares.
"""

from nemo_algos.engines.rewards.math.verifier import verify_math

__all__ = ["verify_math"]
