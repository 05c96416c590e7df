"""Reward functions of somebody's own, which `env.NAME.verifier` names."""


def three(response, answer, prompt):
    return 1.0


async def later(response, answer):
    """Awaited in the pool's processes."""
    return 1.0
