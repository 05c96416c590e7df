"""What we ship and what our pages show is clean under `nemo-algos check`.

No warning, and no note but those of NOTES. A page's command is judged with its page's files; of
the embedded engine the keys alone, for the data, models and devices are the reader's.
"""

import re
import shlex

import pytest
from doc_commands import FENCE, ROOT, blocks, pages, write_files
from releases import MAIN
from test_doc_options import INLINE, commands, config_and_overrides, ours, split

from nemo_algos.config import SHIPPED, apply_overrides, find, read, resolve
from nemo_algos.findings import ConfigError
from nemo_algos.preflight.check import known_models
from nemo_algos.preflight.check.judge import check
from nemo_algos.preflight.check.local import rules
from nemo_algos.preflight.check.local.judge import judge_by

INHERITED = {"local.yaml"}  # it has no method of its own
FILES = [
    path
    for folder in (".", "recipes", "recipes/cpu")
    for path in sorted((SHIPPED / folder).glob("*.yaml"))
    if path.name not in INHERITED
]
NOTES = {
    "checkpointing.checkpoint_dir": "the space that is free on this machine",
    "checkpointing.model_save_format": "nemo_rl.yaml leaves the format to NeMo-RL's config",
    "data.train.data_path": "the reader makes the file",
    "data.validation.data_path": "the reader makes the file",
    "grpo.max_num_steps": "the reader chooses how long to train; the papers' manifests say it",
    "policy.generation.vllm_cfg.async_engine": "what vLLM's asynchronous engine does",
    "policy.generation.vllm_cfg.quantization_ignored_layer_kws": "the layers left in BF16",
    "policy.router_replay.enabled": "what routing differs in",
}
SHOWN = {  # also of a page's commands
    "data.train.split_validation_size": "of NeMo-RL's own vlm_grpo_3B.yaml",
    "grpo.val_period": "a trial of a few steps",
    "checkpointing.save_period": "a trial of a few steps",
    "policy.scheduler": "a trial of a few steps",
    "mismatch.stop_above": "what the page is about",
    "policy.generation.support_replay": "what the page is about",
}
ETR = "recipes/etr-qwen3-8b-base-1n8g-fsdp.yaml"
SMALL = known_models.table()["Qwen/Qwen2.5-0.5B"].model_copy(update={"parameters": 113_856})


def needs(path):
    """What a file leaves to its reader."""
    rows = SHIPPED / "data" / "sums_train.jsonl"
    own = ["policy.model_name=a/b", f"data.train.data_path={rows}"]
    return own if path.name == "math.yaml" else []


def surprises(findings, notes):
    """What none of the notes allows."""
    return [str(f) for f in findings if f.severity != "note" or f.path not in notes]


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """W&B is set up, and the small model is there from which the recipes for a CPU start."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setitem(known_models.table(), "start/model", SMALL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_config_is_clean(path):
    found = surprises(check(str(path), needs(path), MAIN), NOTES)
    extra = path.name == "smollm2.yaml"  # whose model is in a package of its own
    assert not [text for text in found if not (extra and "--extra smollm2" in text)]


def named_configs(page):
    """(config, overrides) of the commands of a page that name one; not of those that fail."""
    text = page.read_text()
    shown = [b.body for b in blocks(text) if b.language == "bash" and "fails" not in b.marks]
    for body in [*shown, *INLINE.findall(FENCE.sub("", text))]:
        for found in filter(None, map(ours, commands(body))):
            if found[1][1:]:
                name, command, words = split(*found)
                given = command.make_context(name, list(words), resilient_parsing=True).params
                config, overrides = config_and_overrides(given)
                if name != "eval" and config and "$" not in shlex.join([config, *overrides]):
                    yield config.split("examples/configs/")[-1], tuple(overrides)


NAMED = {page: dict.fromkeys(named_configs(page)) for page in pages()}
PAGES = [page for page, named in NAMED.items() if named]
MADE = {"own.yaml"}  # by a page's command
PLACES = re.compile(r"[A-Z]+|recipes/FILE.yaml|.*=.*")  # RECIPE; keys without their command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_config_that_a_page_names_is_clean(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    write_files(page, tmp_path)
    for config, overrides in NAMED[page]:
        if config in MADE or PLACES.fullmatch(config):
            continue
        assert not surprises(found_in(config, overrides), NOTES | SHOWN), (config, overrides)


def found_in(config, overrides):
    written = apply_overrides(read(find(config)), overrides)
    if written.engine == "nemo_rl":
        return check(config, overrides, MAIN)
    try:
        return judge_by(rules.RULES, resolve(written)).warnings
    except ConfigError as error:
        return error.findings


@pytest.mark.parametrize(
    ("config", "overrides", "said"),
    [
        ("etr.yaml", ["method.mikro=0.1"], "method.mikro"),
        ("nemo_rl.yaml", ["polcy.x=1"], "polcy"),
        ("nemo_rl.yaml", ["policy.optimizer.kwargs.lr=0.1"], "policy.optimizer.kwargs.lr"),
        ("recipes/cpu/countdown-1n1g-fsdp.yaml", ["policy.optimizer.kwargs.lr=0.5"], "to 0.01 of"),
        (ETR, ["data.train.split_validation_size=0.05"], "split_validation_size"),
    ],
)
def test_what_is_not_clean_is_seen(config, overrides, said):
    assert any(said in text for text in surprises(found_in(config, overrides), NOTES))
