"""Does a loss conform? `python conform.py module:function`; README.md says what it is given."""

import json
import pathlib
import pkgutil
import sys

import numpy as np


def error(got, want, mask):
    """The largest |got - want| / max(1, |want|), 1e308 for a NaN; of [B,S] on the mask."""
    pair = [np.asarray(got, dtype=float), np.nan_to_num(np.array(want, dtype=float))]
    if 2 in (pair[0].ndim, pair[1].ndim):
        pair = [np.broadcast_to(x[:, None] if x.ndim == 1 else x, mask.shape)[mask] for x in pair]
    errors = np.abs(pair[0] - pair[1]) / np.maximum(np.abs(pair[1]), 1)
    return float(np.nan_to_num(errors, nan=1e308).max(initial=0))


def answer(function, case, inputs):
    """What it returns; of a batch in pieces, each a worker's, the sum of their shares."""
    signals = {k: np.array(v, dtype=float) for k, v in case["signals"].items()}

    def share(rows, seen):
        own = [{k: v[rows] if v.ndim else v for k, v in x.items()} for x in (seen, signals)]
        return function(case["method"], dict(case["params"]), *own, dict(case["counts"]))

    if not case.get("pieces"):
        return share(slice(None), inputs)
    tokens, loss, grad = {k: v for k, v in inputs.items() if v.ndim == 2}, 0.0, inputs["mask"] * 0.0
    for rows, part in ((rows, share(rows, tokens)) for rows in case["pieces"]):
        loss, grad[rows] = loss + float(part["loss"]), part["grad"]
    return {"loss": loss, "grad": grad}


def judge(function, case, inputs, tolerance):
    """pass, departs, refused or fails; and the errors by quantity, or the reason."""
    kinds = {"mask": bool, "group": None}  # the others are numbers, null is NaN
    inputs = {k: np.array(v, dtype=kinds.get(k, float)) for k, v in inputs.items()}
    want, mask = {**case["signals"], **case["expected"]}, inputs["mask"]
    try:
        got = answer(function, case, inputs)
        asked = [k for k in want if k in got or k in ("loss", "grad")]
        errors = {k: error(got[k], want[k], mask | (k == "grad")) for k in asked}
    except NotImplementedError as refusal:
        return "refused", str(refusal)
    except Exception as failure:
        return "fails", f"{type(failure).__name__}: {failure}"
    return "pass" if max(errors.values()) <= tolerance else "departs", errors


if __name__ == "__main__":
    sys.path.insert(0, "")
    function, seen = pkgutil.resolve_name(sys.argv[1]), set()
    data = json.loads(pathlib.Path(__file__).with_name("cases.json").read_text())
    for case in data["cases"]:
        verdict, detail = judge(function, case, data["inputs"][case["inputs"]], data["tolerance"])
        print(case["name"], verdict, "" if verdict == "pass" else detail)
        seen.add(verdict)
    sys.exit("pass" not in seen or bool(seen & {"departs", "fails"}))
