"""examples/nemo_rl_by_hand.py: plain formulas, NeMo-RL's loss fed by hand, and ours are one."""

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_three_ways_to_a_loss_agree(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import nemo_rl_by_hand

    nemo_rl_by_hand.main()
    assert len(capsys.readouterr().out.splitlines()) == 5

    honest = nemo_rl_by_hand.nemo_rl_loss
    monkeypatch.setattr(
        nemo_rl_by_hand, "nemo_rl_loss", lambda *given, **more: 1.00001 * honest(*given, **more)
    )
    with pytest.raises(AssertionError):
        nemo_rl_by_hand.main()
