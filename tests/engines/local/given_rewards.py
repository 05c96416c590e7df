"""Reward functions for tests, named `given_rewards:NAME`."""

import asyncio
import json
import os


def boom(r, a):
    raise KeyError("gold")


def trl(completions, answer, **kwargs):
    return [1.0 for _ in completions]


def everything(response, answer, prompt, row, tokens):
    """A digit for each of what is given, as it should be for rows {problem, answer, level}."""
    right = (prompt == f"say {row['problem']}") + 2 * (row["answer"] == answer)
    return right + 4 * (tokens == len(response.split())) + 8 * row["level"]


def open_ended(response, **given):
    return float(json.dumps(sorted(given)) == '["answer", "prompt", "row", "tokens"]')


async def slowly(response, answer):
    """1 where the others are under way too, else as long as one alone takes."""
    slowly.running = getattr(slowly, "running", 0) + 1
    await asyncio.sleep(0)
    return float(slowly.running)


async def alone(tokens):
    await asyncio.sleep(0)
    return tokens / 8


def with_row(response, answer, row=None):
    return float(response == answer)


def by_prompt(response, prompt):
    return float(prompt in response)


def process(tokens):
    return os.getpid()


def short(tokens):
    return 1 / (1 + tokens)


def tenth(tokens):
    return 0.1


def asked_in_words(prompt, tokens):
    """Whether the prompt is the whole message of test_local_sampler, and the length is known."""
    return float(prompt.startswith("what is ") and prompt.endswith(" + 1 ?") and 1 <= tokens <= 4)


def odd_only(tokens):
    if tokens % 2 == 0:
        raise ValueError(f"{tokens} is even")
    return 1.0


async def odd_later(tokens):
    await asyncio.sleep(0)
    return odd_only(tokens)


def patient(tokens):
    if tokens % 2 == 0:
        raise TimeoutError("slow")
    return 1.0


def boundless(response, answer):
    return float("inf")


def text(response, answer):
    return "1.0"


def nothing(response, answer):
    return None


def endless(response, answer):
    return float("nan")


def late(response):
    global calls
    calls += 1
    if calls > 16:
        raise RuntimeError("the judge is gone")
    return float(calls % 2)


calls = 0


def even_text(response):
    if len(response) % 2:
        raise ValueError("odd")
    return 1.0


def same(response):
    return 1.0
