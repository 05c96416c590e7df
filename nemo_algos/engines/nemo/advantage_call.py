"""The lines of NeMo-RL's trainers that call the estimator and take its advantages.

They stand inside functions of a thousand lines that need Ray, workers and rollouts, and no smaller
function of NeMo-RL has them. So these statements alone are run, with what the estimator returned in
place of the call.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

NAME, RETURNED, TAKEN = "compute_advantage", "nemo_algos_returned", "advantages"


class AdvantageCall(NamedTuple):
    """keywords: by which a trainer calls compute_advantage; taken: its advantages of the result."""

    keywords: list[str]
    taken: Callable[[Any], Tensor]


def of(trainer: Callable[..., Any]) -> AdvantageCall:
    """Raises ImportError where the trainer calls no estimator."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(trainer)))
    blocks = [b for node in ast.walk(tree) if isinstance(b := getattr(node, "body", None), list)]
    for block in reversed(blocks):  # the innermost one is walked last
        for number, statement in enumerate(block):
            for call in _calls(statement):
                keywords = [k.arg for k in call.keywords if k.arg]
                lines = [ast.fix_missing_locations(_Replaced().visit(s)) for s in block[number:]]
                return AdvantageCall(keywords, functools.partial(_run_lines, lines, trainer))
    raise ImportError(f"{trainer.__module__}.{trainer.__qualname__} calls no {NAME}")


def _run_lines(lines: list[ast.stmt], trainer: Callable[..., Any], result: Any) -> Tensor:
    """Runs the lines up to the one that has the advantages."""
    local: dict[str, Any] = {RETURNED: result, "train_data": {}}
    for line in lines:  # each compiled by itself: one behind them may leave the function
        exec(compile(ast.Module([line], []), NAME, "exec"), trainer.__globals__, local)
        if isinstance(found := (local["train_data"] | local).get(TAKEN), Tensor):
            return found
    raise ValueError(
        f"{trainer.__qualname__} takes no {TAKEN} from {NAME}: this NeMo-RL is not supported"
    )


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == NAME:
            yield node


class _Replaced(ast.NodeTransformer):
    """The call by the name of what it returned."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        replaced = getattr(node.func, "attr", None) == NAME
        return ast.Name(RETURNED, ast.Load()) if replaced else self.generic_visit(node)
