"""Modules that some commands alone need, and how they are had."""

from importlib.util import find_spec

from nemo_algos.findings import ConfigError, Finding

# a module, and the extra of pyproject.toml that brings it
EXTRAS: dict[str, str] = {
    **dict.fromkeys(("transformers", "math_verify", "tensorboard", "matplotlib"), "engine"),
    **dict.fromkeys(("scipy", "sklearn", "rapidfuzz", "httpx", "openai"), "lab"),
}


def install(package: str, extra: str = "") -> str:
    """How a package is had that is not needed by all; extra: of ours, where it has another name."""
    return f"pip install {package} (in a checkout: uv run --extra {extra or package} ...)"


def install_of(module: str | None) -> str:
    """How a module of an extra is had; empty for any other."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    return install(f"'nemo-algos[{extra}]'", extra) if extra else ""


def require(extra: str) -> None:
    """Raises ConfigError where a module of an extra is missing; `lab` has those of `engine` too."""
    needed = [module for module, of in EXTRAS.items() if of in ("engine", extra)]
    missing = [module for module in needed if find_spec(module) is None]
    if missing:
        cure = install(f"'nemo-algos[{extra}]'", extra)
        raise ConfigError(
            [
                Finding(
                    "",
                    f"this command needs {', '.join(missing)}, which `pip install nemo-algos` "
                    f"does not install: {cure}",
                )
            ]
        )
