"""The learning rate that is foretold is that of Megatron-Core's own scheduler, at every step."""

import random
from types import SimpleNamespace

import pytest
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from nemo_algos.preflight.forecast import rates

BATCH = 64  # sequences, in which the scheduler counts


def of_megatron(optimizer, scheduler, whole, steps):
    """As Megatron Bridge fills it in, and NeMo-RL steps it."""
    decay = scheduler["lr_decay_iters"] or whole
    group = {"lr": 0.0, "weight_decay": 0.0}
    made = OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]),
        init_lr=scheduler["lr_warmup_init"],
        max_lr=optimizer["lr"],
        min_lr=optimizer["min_lr"],
        lr_warmup_steps=scheduler["lr_warmup_iters"] * BATCH,
        lr_decay_steps=decay * BATCH,
        lr_decay_style=scheduler["lr_decay_style"],
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=whole * BATCH,
        wd_incr_style="constant",
        wsd_decay_steps=(scheduler["lr_wsd_decay_iters"] or decay) * BATCH,
        lr_wsd_decay_style=scheduler["lr_wsd_decay_style"],
    )
    found = []
    for _ in range(steps):
        found.append(group["lr"])
        made.step(BATCH)
    return found


def test_the_rate_is_megatrons():
    draw = random.Random(0)
    styles = set()
    for _ in range(300):
        peak = 10 ** draw.uniform(-7, -4)
        whole = draw.randint(5, 200)
        decay = draw.choice([None, draw.randint(5, 300)])
        last = decay or whole
        scheduler = {
            "lr_decay_style": draw.choice(rates.STYLES),
            "lr_decay_iters": decay,
            "lr_warmup_iters": draw.choice([0, draw.randint(0, last - 1)]),
            "lr_warmup_init": peak * draw.random(),
            "lr_wsd_decay_iters": draw.choice([None, draw.randint(1, last)]),
            "lr_wsd_decay_style": draw.choice(rates.WSD_STYLES),
        }
        optimizer = {"lr": peak, "min_lr": peak * draw.random()}
        want = of_megatron(optimizer, scheduler, whole, whole)
        found = rates.megatron_rates(optimizer, scheduler, whole, whole, batch=BATCH)
        assert found == pytest.approx(want, rel=1e-9, abs=1e-18), scheduler
        styles.add(scheduler["lr_decay_style"])
    assert styles == {*rates.STYLES}
