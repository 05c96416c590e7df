"""From sampler and trainer log-probs of the same tokens to the cause of their difference."""
