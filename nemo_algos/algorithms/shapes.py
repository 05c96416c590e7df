"""What the axes of a tensor are, for who reads: to a type checker each is a Tensor.

B sequences, S positions; a batch's prompts stand before its responses, off the mask.
"""

from typing import TypeAlias

from torch import Tensor

Mask: TypeAlias = Tensor  # [B,S] bool: True on response tokens
PerToken: TypeAlias = Tensor  # [B,S]: a number for each token, defined on the mask
PerSequence: TypeAlias = Tensor  # [B]: a number for each response
