"""The atlas: every method's expected update in worlds small enough to be summed over."""
