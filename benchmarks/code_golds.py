"""What the code verifier says of HumanEval's and MBPP's own solutions, and of broken ones.

    python benchmarks/code_golds.py HUMANEVAL.jsonl MBPP.jsonl

Each reference solution, whole and broken in four ways, goes through a VerifierPool. MBPP's entry
point is the function of the solution that its tests call first.
"""

import ast
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nemo_algos.engines.execution.code import protections
from nemo_algos.engines.rewards import VerifierPool

WORKERS = 2
DEADLINE = 15.0
FLIPPED = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult},
    **{ast.Mod: ast.Add, ast.FloorDiv: ast.Mult, ast.Pow: ast.Add},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt},
    **{ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.And: ast.Or, ast.Or: ast.And},
}

Item = tuple[str, str, str]  # whole program, entry point, answer


def humaneval(row: dict[str, str]) -> Item:
    name = row["entry_point"]
    tests = f"{row['test']}\ncheck({name})\n"
    answer = {"prompt": row["prompt"], "entry_point": name, "tests": tests}
    return row["prompt"] + row["canonical_solution"], name, json.dumps(answer)


def mbpp(row: dict) -> Item:
    tests = "\n".join([row["test_setup_code"], *row["test_list"]])
    defined = {
        node.name for node in ast.parse(row["code"]).body if isinstance(node, ast.FunctionDef)
    }
    names = [node.id for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Name)]
    name = next(name for name in names if name in defined)
    return row["code"], name, json.dumps({"prompt": "", "entry_point": name, "tests": tests})


def emptied(program: str, name: str) -> str | None:
    return with_body(program, name, "pass")


def none(program: str, name: str) -> str | None:
    return with_body(program, name, "return None")


def echo(program: str, name: str) -> str | None:
    return with_body(program, name, "return next(iter(locals().values()), None)")


def with_body(program: str, name: str, body: str) -> str:
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.body = ast.parse(f"def f():\n    {body}").body[0].body  # pyright: ignore
    return ast.unparse(tree)


def flipped(program: str, name: str) -> str | None:
    """The first operator of the entry point replaced by another; None where it has none."""
    tree = ast.parse(program)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    for node in ast.walk(functions[-1]):
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in FLIPPED:
            node.op = FLIPPED[type(node.op)]()
            return ast.unparse(tree)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED:
            node.ops[0] = FLIPPED[type(node.ops[0])]()
            return ast.unparse(tree)
    return None


BROKEN: list[Callable[[str, str], str | None]] = [emptied, none, echo, flipped]


def main() -> None:
    with VerifierPool("nemo_algos.engines.execution.code:verify_code", WORKERS, DEADLINE) as pool:
        print("protections:", "; ".join(protections()))
        for item, path in zip((humaneval, mbpp), sys.argv[1:], strict=True):
            rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
            items = [item(row) for row in rows]
            report(pool, f"{item.__name__}, as published", items)
            for change in BROKEN:
                broken = [(change(program, name), name, answer) for program, name, answer in items]
                report(pool, f"{item.__name__}, {change.__name__}", [x for x in broken if x[0]])


def report(pool: VerifierPool, title: str, items: list) -> None:
    start = time.monotonic()
    verdicts = pool.score([program for program, *_ in items], [answer for *_, answer in items])
    each = (time.monotonic() - start) * WORKERS / len(items)
    passed = sum(verdict.reward for verdict in verdicts)
    bad = [verdict.detail or verdict.status for verdict in verdicts if verdict.status != "ok"]
    print(f"{title}: {passed:.0f} of {len(items)} pass, {each * 1e3:.1f} ms each, not ok: {bad}")


if __name__ == "__main__":
    main()
