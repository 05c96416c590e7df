"""Whether a function computes a method's loss as this package does: every method in every trap.

A function gets (method, params, inputs, signals, counts): the name of a method and all its
parameters; NumPy arrays of a batch (`mask` [B,S] bool, log-probs and entropy [B,S], `group` and
`rewards` [B]); what the driver half gives (`advantages`, finite `low` and `high`, the method's
extras, each a number, [B] or [B,S]); the counts of the whole batch (`sequences` that have a token,
`tokens`, `rows`, `pieces`). It returns `loss` and `grad` = d loss / d `logprobs` [B,S]; what else
it returns by a name of the signals or metrics is compared, too. NotImplementedError refuses a case.

Some cases of GRPO and GSPO have a KL penalty: their parameters have `kl_coef`, by which the loss
has the KL to `ref_logprobs` added, and `kl_type`, its estimator.

A batch in pieces is a worker's view: the function gets the rows of a piece, without `group` and
`rewards`, with the counts of the whole batch, and the shares that it returns are added.
"""

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
from torch import Tensor
from traps import Batch, traps

from nemo_algos.algorithms.build import build
from nemo_algos.algorithms.core.kl import KLType
from nemo_algos.algorithms.golden.verify import compute, error
from nemo_algos.algorithms.methods import METHODS

Function = Callable[..., dict[str, Any]]
Row = dict[str, Any]  # method, trap, kl, verdict, detail

# no framework has turns of its own: tests/algorithms/methods/test_by_turn.py
COMPARED = [name for name, method in METHODS.items() if "turn_rewards" not in method.needs]
# the penalty is one code for all methods: a ratio by token and one by sequence, where means differ
KL_METHODS = ("grpo", "gspo")
KL_TRAPS = ("plain", "holes", "unequal_lengths", "data_parallel")
KL_TYPES = get_args(KLType)
KL_COEF = 0.1


def build_cases(methods: Any = COMPARED) -> list[dict[str, Any]]:
    """The cases of these methods, each with what the code here computes of the batch."""
    cases = []
    for method in methods:
        for trap, batch in traps().items():
            cases.append(case(method, trap, batch, {}))
            penalized = method in KL_METHODS and trap in KL_TRAPS
            for kind in KL_TYPES if penalized else ():
                cases.append(case(method, trap, batch, {"kl_coef": KL_COEF, "kl_type": kind}))
    return cases


def case(method: str, trap: str, batch: Batch, penalty: dict[str, Any]) -> dict[str, Any]:
    """A case, of which `signals` go to the function and `expected` are compared.

    penalty: kl_coef and kl_type of a KL penalty to the reference; empty: the loss has none.
    """
    algorithm = build(method)
    lengths = [sum(row) for row in batch.inputs["mask"]]
    computed = compute(method, penalty, batch.inputs)
    got = {name: _to_lists(value) for name, value in computed.items()}
    given = {*algorithm.per_token, "low", "high"} & {*got}
    counts = {"sequences": sum(length > 0 for length in lengths), "tokens": sum(lengths)}
    counts |= {"rows": len(lengths), "pieces": len(batch.pieces or [0])}
    return {
        "method": method,
        "trap": trap,
        "params": algorithm.base.params.model_dump() | penalty,
        "inputs": batch.inputs,
        "signals": {name: got.pop(name) for name in given},
        "counts": counts,
        "pieces": batch.pieces,
        "expected": got,
    }


def _to_lists(values: Tensor) -> Any:
    """Numbers of twelve digits, so that the last bits of a processor do not matter."""
    return np.vectorize(lambda x: float(f"{x:.12g}"))(values).tolist()


def run(function: Function, cases: list[dict[str, Any]], tolerance: float) -> list[Row]:
    """Method, trap, KL type (None: no penalty), verdict and detail of each case."""
    rows = []
    for one in cases:
        verdict, detail = judge(function, one, tolerance)
        row = {"method": one["method"], "trap": one["trap"], "kl": one["params"].get("kl_type")}
        row |= {"verdict": verdict, "detail": detail}
        rows.append(row)
    return rows


def judge(function: Function, one: dict[str, Any], tolerance: float) -> tuple[str, Any]:
    """pass, departs, refused or fails; and the errors by quantity, or the reason."""
    kinds: dict[str, Any] = {"mask": bool, "group": None}  # the others are numbers, None is NaN
    inputs = {k: np.array(v, dtype=kinds.get(k, float)) for k, v in one["inputs"].items()}
    wanted, mask = {**one["signals"], **one["expected"]}, inputs["mask"]
    try:
        got = _answer(function, one, inputs)
        asked = [name for name in wanted if name in got or name in ("loss", "grad")]
        errors = {k: error(got[k], wanted[k], mask | (k == "grad")) for k in asked}
    except NotImplementedError as refusal:
        return "refused", str(refusal)
    except Exception as failure:  # whatever a framework raises
        return "fails", f"{type(failure).__name__}: {failure}"
    return "pass" if max(errors.values()) <= tolerance else "departs", errors


def _answer(function: Function, one: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """What the function returns; of a batch in pieces the sum of the shares."""
    signals = {k: np.array(v, dtype=float) for k, v in one["signals"].items()}

    def share(rows: Any, seen: dict[str, Any]) -> dict[str, Any]:
        own = {k: v[rows] for k, v in seen.items()}
        given = {k: v[rows] if v.ndim else v for k, v in signals.items()}
        return function(one["method"], dict(one["params"]), own, given, dict(one["counts"]))

    if not one["pieces"]:
        return share(slice(None), inputs)
    tokens = {k: v for k, v in inputs.items() if v.ndim == 2}
    loss, grad = 0.0, np.zeros(inputs["mask"].shape)
    for rows in one["pieces"]:
        part = share(rows, tokens)
        loss += float(part["loss"])
        grad[rows] = part["grad"]
    return {"loss": loss, "grad": grad}


def cell(row: Row) -> str:
    """The verdict, or which quantity departs the most and by how much."""
    if row["verdict"] != "departs":
        return row["verdict"]
    quantity = max(row["detail"], key=row["detail"].__getitem__)
    departs = row["detail"][quantity]
    return f"{quantity} {departs:.0e}" if departs < 1e300 else f"{quantity} NaN"
