"""Numbers on axes are numbers: mathtext is off, for names may hold a dollar."""

import pytest

from nemo_algos import style


@pytest.mark.parametrize(
    ("scale", "options"),
    [("log", {}), ("log", {"base": 2}), ("symlog", {"linthresh": 0.01}), ("linear", {})],
)
@pytest.mark.parametrize("limits", [(0.001, 1000), (0.2, 0.7), (3, 40)])
def test_no_label_of_an_axis_is_mathtext(scale, options, limits, tmp_path):
    with style.save(tmp_path / "x.png", (3, 2), 2) as (figure, axes):
        for axis in axes:
            axis.plot(limits, limits)
            axis.set_xscale(scale, **options)
            axis.set_yscale(scale, **options)
    figure.canvas.draw()
    both = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    texts = [t.get_text() for axis in both for m in (False, True) for t in axis.get_ticklabels(m)]
    assert any(texts) and not [text for text in texts if "$" in text or "mathdefault" in text]
    if scale == "log" and limits == (0.001, 1000) and not options:
        assert {"0.001", "1000"} <= {*texts}
