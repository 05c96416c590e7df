"""Ray's calls answered in this process."""

from typing import Any

import ray


class Done:
    """A finished Ray future."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Actor:
    """`actor.method.remote(...)` on an object of this process."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._target, name)
        return type("Method", (), {"remote": lambda _, *a, **k: Done(method(*a, **k))})()


def remote(*given: Any, **options: Any) -> Any:
    """`ray.remote` of a class, with options or without: its actors are objects of this process."""
    if not given:
        return remote
    make = {"remote": staticmethod(lambda *a, **k: Actor(given[0](*a, **k)))}
    return type(given[0].__name__, (), make)


def without_ray(patch: Any) -> None:
    """`ray.get` of a Done is its value; NeMo-RL's memory report asks no Ray."""
    from nemo_rl.utils import memory_tracker

    get = ray.get

    def resolve(refs: Any, **kwargs: Any) -> Any:
        if isinstance(refs, list):
            return [resolve(ref, **kwargs) for ref in refs]
        return refs.value if isinstance(refs, Done) else get(refs, **kwargs)

    patch.setattr(ray, "get", resolve)
    patch.setattr(memory_tracker, "memory_summary", lambda **_: "")
