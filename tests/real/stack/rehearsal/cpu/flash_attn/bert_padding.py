"""What transformers and Bridge import for batches with an attention mask, and never call."""


def __getattr__(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)
