"""GPG: the plain policy gradient, J = token mean of A_i log pi, with A_i = R_i - mean(R)."""

from nemo_algos.algorithms.kernel import Method, no_bounds
from nemo_algos.algorithms.record import OfAdvantages, Params, Std


class GPGParams(Params):
    """advantage_std: none is GPG's own."""

    advantage_std: OfAdvantages[Std] = "none"


GPG = Method(
    name="gpg",
    paper="GPG, arXiv 2504.02546",
    params=GPGParams,
    constant_bounds=no_bounds,
    form="logprob",
    clips=None,
    mean="token",
)
