"""Puzzles: what a worked solution is, when two are the same one, what a draw gives, the split."""

import dataclasses
import random
from collections import Counter

import pytest

from nemo_algos.engines.data import countdown, puzzles
from nemo_algos.engines.data.countdown import TOKEN, Puzzle, Rules, solution

PROBLEM = Puzzle((6, 10, 1), 17)


def tokens(text):
    return [TOKEN[word] for word in text.split()]


def solve(problem, text):
    return solution(problem, tokens(text))


@pytest.mark.parametrize(
    ("problem", "text", "steps"),
    [
        (PROBLEM, "1 + 10 = 11 , 11 + 6 = 17 <eos>", ((1, "+", 10, 11), (6, "+", 11, 17))),
        (Puzzle((2, 3, 4), 20), "2 + 3 = 5 , 5 * 4 = 20 <eos>", ((2, "+", 3, 5), (4, "*", 5, 20))),
        (Puzzle((7, 9), 2), "9 - 7 = 2 <eos>", ((7, "-", 9, 2),)),
        (Puzzle((2, 2, 2), 6), "2 + 2 = 4 , 4 + 2 = 6 <eos>", ((2, "+", 2, 4), (2, "+", 4, 6))),
        (Puzzle((5, 5, 3), 3), "5 - 5 = 0 , 0 + 3 = 3 <eos>", ((0, "+", 3, 3), (5, "-", 5, 0))),
    ],
)
def test_right_answers(problem, text, steps):
    assert solve(problem, text) == steps


@pytest.mark.parametrize(
    "text",
    [
        "1 + 10 = 12 , 12 + 6 = 18 <eos>",  # false, and another target
        "1 + 10 = 12 , 12 + 6 = 17 <eos>",  # false, twice
        "6 + 10 = 16 , 16 - 1 = 15 <eos>",  # true, another target
        "6 + 10 = 16 , 6 + 11 = 17 <eos>",  # 6 twice
        "8 + 9 = 17 , 17 + 0 = 17 <eos>",  # numbers that are not there
        "6 + 11 = 17 , 1 + 10 = 11 <eos>",  # a result before it is there
        "6 + 10 = 16 , 10 + 7 = 17 <eos>",  # 10 twice
        "10 - 1 = 9 , 9 + 6 = 15 <eos>",
        "1 - 10 = 9 , 9 + 6 = 15 <eos>",  # a difference that is negative
        "10 + 1 = 11 <eos>",  # too few steps
        "1 + 10 = 11 , 11 + 6 = 17 , 17 + 0 = 17 <eos>",  # too many
        "1 + 10 = 11 , 11 + 6 = 17",  # no end
        "1 + 10 = 11 , 11 + 6 = 17 ,",  # a comma for the end
        "1 + 10 = 11 <eos> 11 + 6 = 17 <eos>",  # an end for the comma
        "1 + 10 = 11 , 11 + 6 = 17 <eos> <pad>",  # something behind the end
        "1 + 10 = 11 , 11 + 6 > 17 <eos>",  # no equals sign
        "1 > 10 = 11 , 11 + 6 = 17 <eos>",  # no operator
        "1 + 10 = <pad> , 11 + 6 = 17 <eos>",  # no number
        "+ + 10 = 11 , 11 + 6 = 17 <eos>",
        "<eos>",
        "",
    ],
)
def test_wrong_answers(text):
    assert solve(PROBLEM, text) is None


def test_a_symbol_does_not_stand_for_the_number_of_its_token():
    assert TOKEN["+"] == 100  # 10 * 10
    assert solve(Puzzle((10, 10, 9), 91), "10 * 10 = + , + - 9 = 91 <eos>") is None


def test_a_sum_is_itself_turned_round_and_a_difference_is_not():
    problem = Puzzle((1, 2), 3)
    assert solve(problem, "1 + 2 = 3 <eos>") == solve(problem, "2 + 1 = 3 <eos>") is not None
    problem = Puzzle((3, 1), 2)
    assert solve(problem, "3 - 1 = 2 <eos>") == ((1, "-", 3, 2),)
    assert solve(problem, "1 - 3 = 2 <eos>") is None


def test_the_order_of_independent_steps_does_not_matter_and_their_operators_do():
    problem = Puzzle((1, 2, 3, 4), 21)
    one = solve(problem, "1 + 2 = 3 , 3 + 4 = 7 , 3 * 7 = 21 <eos>")
    other = solve(problem, "4 + 3 = 7 , 2 + 1 = 3 , 7 * 3 = 21 <eos>")
    assert one == other is not None
    problem = Puzzle((2, 2, 3), 7)
    plus, times = (solve(problem, f"2 {o} 2 = 4 , 4 + 3 = 7 <eos>") for o in "+*")
    assert plus and times and plus != times


@pytest.mark.parametrize("count", [2, 3, 4])
def test_sampled_solutions_are_right_and_encode_as_they_decode(count):
    rng = random.Random(count)
    for _ in range(2000):
        problem, steps = countdown.random_solution(rng, Rules(count))
        ids = countdown.encode(steps)
        assert solution(problem, ids) is not None
        assert len(ids) == countdown.TOKENS_PER_STEP * (count - 1)
        assert tokens(countdown.decode(ids)) == ids
        assert 1 <= problem.target <= 99 and all(1 <= n <= 10 for n in problem.numbers)
        assert all(0 <= result <= 99 for *_, result in steps)


SOME = Puzzle((6, 10, 1, 2), 16, use_all=False)


@pytest.mark.parametrize(
    "text",
    [
        "6 + 10 = 16 <eos>",
        "6 * 1 = 6 , 6 + 10 = 16 <eos>",
        "10 - 2 = 8 , 8 * 2 = 16 <eos>",
        "2 - 1 = 1 , 6 * 1 = 6 , 6 + 10 = 16 <eos>",
    ],
)
def test_some_of_the_numbers(text):
    right = text.startswith(("6", "2"))  # the third one uses 2 twice
    assert (solve(SOME, text) is not None) == right
    assert solve(Puzzle(SOME.numbers, 16), text) is None or text.count(",") == 2


def test_a_result_may_not_be_left_over():
    assert solve(SOME, "2 * 1 = 2 , 6 + 10 = 16 <eos>") is None  # though a 2 is shown
    assert solve(SOME, "2 * 1 = 2 , 2 * 2 = 4 , 6 + 10 = 16 <eos>") is None
    assert solve(SOME, "2 * 1 = 2 , 6 + 10 = 16 , 16 * 1 = 16 <eos>") is None
    assert solve(Puzzle((2, 1, 2, 8), 16, False), "2 * 1 = 2 , 2 * 8 = 16 <eos>") is not None
    assert solve(Puzzle((6, 10, 1, 3), 16, False), "3 - 1 = 2 , 6 + 10 = 16 <eos>") is None
    assert solve(SOME, "6 + 10 = 16 , 2 - 1 = 1 <eos>") is None  # ends elsewhere


def test_solutions_of_some_of_the_numbers_have_every_length():
    rng, lengths = random.Random(0), []
    for _ in range(3000):
        problem, steps = countdown.random_solution(rng, Rules(4, use_all=False))
        assert len(problem.numbers) == 4 and not problem.use_all
        assert solution(problem, countdown.encode(steps)) is not None
        lengths.append(len(steps))
    shares = [lengths.count(n) / 3000 for n in (1, 2, 3)]
    assert sum(shares) == 1 and min(shares) > 0.2  # 1/3 each before unusable ones are dropped


def test_prompt_and_response_as_text():
    assert str(PROBLEM) == "6 10 1 > 17"
    ids = countdown.encode([(1, "+", 10, 11), (11, "+", 6, 17)])
    assert countdown.decode(ids) == "1 + 10 = 11 , 11 + 6 = 17 <eos>"


def test_the_split_does_not_see_the_order_of_the_numbers():
    rng = random.Random(0)
    problems = [countdown.random_solution(rng, Rules())[0] for _ in range(2000)]
    for problem in problems:
        turned = [Puzzle(problem.numbers[i:] + problem.numbers[:i], problem.target) for i in (1, 2)]
        assert {puzzles.is_held_out(p) for p in turned} == {puzzles.is_held_out(problem)}
    assert 0.05 < sum(map(puzzles.is_held_out, problems)) / len(problems) < 0.15


def test_more_test_problems_than_there_are_ends_with_all_of_them():
    every = [(a, b, c) for a in range(1, 11) for b in range(1, a + 1) for c in range(1, 100)]
    solvable = [Puzzle((a, b), c) for a, b, c in every if c in (a + b, a - b, a * b)]
    want = {(b, a, p.target) for p in solvable if puzzles.is_held_out(p) for a, b in [p.numbers]}
    got = puzzles.held_out(len(want) + 1, Rules(2))
    assert {(*sorted(p.numbers), p.target) for p in got} == want and len(got) == len(want)


def told(family, numbers=3, times=300):
    rng = random.Random(0)
    return [puzzles.sample(rng, Rules(numbers, True, family)) for _ in range(times)]


@pytest.mark.parametrize("numbers", [2, 9, 26])
def test_a_sum_adds_every_number_once(numbers):
    for puzzle, response in told("sums", numbers):
        assert len(response) == 6 * (numbers - 1)
        first, added = response[0], response[2::6]
        assert Counter([first, *added]) == Counter(puzzle.numbers)
        assert response[-2] == sum(puzzle.numbers) == puzzle.target <= 99
        assert solution(puzzle, response) is not None


@pytest.mark.parametrize(("family", "number"), [("countdown", 128), ("sums", 15)])
def test_no_puzzle_is_in_both_splits(family, number):
    rules = Rules(3, True, family)
    test = puzzles.held_out(number, rules)
    assert all(map(puzzles.is_held_out, test)) and puzzles.held_out(10, rules) == test[:10]
    assert len({p.key if family == "countdown" else str(p) for p in test}) == number
    assert {p.key for p, _ in told(family)}.isdisjoint(p.key for p in test)
    assert max(len(r) for _, r in told(family)) <= puzzles.FAMILIES[family].longest(rules)


def test_sums_of_the_same_numbers_in_another_order_are_puzzles_of_their_own():
    """Of 26 numbers from 1 to 3 there are few sets, and each order has another right response."""
    asked = puzzles.held_out(64, Rules(26, True, "sums"))
    assert len({str(p) for p in asked}) == 64 > len({p.key for p in asked})


@pytest.mark.parametrize("family", ["countdown", "sums"])
def test_the_order_in_which_a_puzzle_shows_its_numbers_is_not_its_key(family):
    puzzle = told(family)[0][0]
    turned = dataclasses.replace(puzzle, numbers=puzzle.numbers[::-1])
    assert turned.key == puzzle.key and str(turned) != str(puzzle)
