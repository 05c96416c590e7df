"""The laptop study: methods x seeds x regimes on the embedded engine, and what they say."""
