"""docs/architecture.md's table of what we replace in NeMo-RL, by the code of engines/nemo.

    uv run scripts/replaced.py

A place without a row in ROWS, and a row without a place, is an error. tests/docs/test_replaced.py
holds the page to it.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "nemo_algos" / "engines" / "nemo"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- replaced -->\n", "<!-- end -->"
CHANGES = ("replace_attributes", "setattr", "run_path", "modified_class", "__ray_actor_class__")
# ours, or made by the trial
OWN = ("self", "cls", "estimator", "step", "policy", "config", "of_words")

# place: what of NeMo-RL, and as long as what
RUN = "a run"
ROWS = {
    "patches.in_place": (
        "`_create_advantage_estimator`, `scale_rewards`, `calculate_baseline_and_std_per_prompt`, "
        "and `get_gdpo_reward_component_keys` of `grpo_sync`",
        RUN,
    ),
    "patches.previous_logprobs_skipped": (
        "`opd._skip_prev_logprobs`",
        "a run whose old policy is the sampler",
    ),
    "policy.columns_registered": (
        "`DP_TRAIN_FIELDS`, `TOKEN_ALIGNED_FIELDS`",
        "a run through the data plane",
    ),
    "single_controller.ControllerImpl.__init__": (
        "the same two, in the controller's actor",
        "the life of its process",
    ),
    "entropy_worker.EntropyMixin._write_back_result_field": (
        "`TOKEN_ALIGNED_FIELDS`, in a worker",
        "the life of its process",
    ),
    "single_controller": (
        "`SingleControllerActor`: the class that Ray wraps is derived from, by private names",
        "the life of the actor",
    ),
    "single_controller.watch": (
        "`_run_with_controller_liveness_watch` is not replaced, but taken from its run script",
        "a run",
    ),
    "single_controller.rehearse": (
        "`ClippedPGLossFn`, `TQPolicy`, `_create_advantage_estimator` of the controller's setup",
        "the test before Ray",
    ),
    "single_controller.train": ("the same three", "its setup"),
    "entropy_worker.recording": ("`LogprobsPostProcessor`", "a forward pass in a worker"),
    "entropy_worker.for_the_loss": (
        "`prepare_loss_input`, `prepare_packed_loss_input`",
        "a training step in a worker",
    ),
    "megatron_worker.hidden_state_entropies": (
        "`from_parallel_hidden_states_to_logprobs`",
        "a forward pass in a worker",
    ),
    "probe.Probe.__init__": (
        "`generate`, `finish_generation` of the engine",
        "a run with `mismatch.probe`; never put back",
    ),
    "environment.register": (
        "entries of `ENV_REGISTRY`, `ACTOR_ENVIRONMENT_REGISTRY`",
        "the process",
    ),
    "environment.log_statuses": (
        "`log_metrics` of its logger",
        "a run with verifiers as environments; never put back",
    ),
    "policy.listen": ("the same of its logger", "a run; never put back"),
    "worker_env.register_worker": ("an entry of `ACTOR_ENVIRONMENT_REGISTRY`", "the process"),
    "trial.without_ray": (
        "Ray's `get` and `kill`, `time.sleep`, `memory_summary`, `make_actor_runtime_env`, "
        "`get_actor_python_env`, actors, the data plane's client",
        "the test before Ray",
    ),
    "trial._rollouts": (
        "`SyncRolloutActor`: the class that Ray wraps is made here",
        "the test before Ray",
    ),
}


def places(folder: Path = FOLDER) -> dict[str, str]:
    """Where something of NeMo-RL is replaced, by module and function, and how."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text())
        theirs = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("nemo_rl")
            for alias in node.names
        }
        for scope, node in statements(tree, path.stem):
            if how := replaces(node, theirs):
                found.setdefault(scope, how)
    return {scope: how for scope, how in found.items() if not scope.startswith("versions.")}


def statements(tree: ast.AST, scope: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the name of the function or class around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = scope if local(tree) else f"{scope}.{node.name}"
            yield from statements(node, inner)
        else:
            yield scope, node
            yield from statements(node, scope)


def local(tree: ast.AST) -> bool:
    """Whether what is defined in it is a function's own."""
    return isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)


def replaces(node: ast.AST, theirs: set[str]) -> str:
    """How a statement or expression changes what is not ours; "" where it does not."""
    if isinstance(node, ast.Attribute | ast.Name):
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        return name if name in CHANGES else ""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        bound_anew = root is target and not isinstance(node, ast.AugAssign)
        if not isinstance(root, ast.Name) or bound_anew:
            continue
        if (isinstance(target, ast.Attribute) and root.id not in OWN) or root.id in theirs:
            return ast.unparse(target)
    return ""


def table(folder: Path = FOLDER) -> str:
    """The rows. Raises ValueError with the places and rows that are without the other."""
    found = places(folder)
    odd = [f"{place}: {found[place]} has no row" for place in found if place not in ROWS]
    odd += [f"{place}: nothing is replaced there" for place in ROWS if place not in found]
    if odd:
        raise ValueError("scripts/replaced.py, ROWS: " + "; ".join(odd))
    lines = ["| of NeMo-RL | by | as long as |", "|---|---|---|"]
    for place, (what, long) in ROWS.items():
        module, _, function = place.partition(".")
        by = f"`{module}.py`" + (f", `{function}`" if function else "")
        lines.append(f"| {what} | {by} | {long} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page with the table of now."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    sys.exit(PAGE.write_text(page()) < 0)
