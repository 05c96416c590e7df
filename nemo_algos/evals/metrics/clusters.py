"""Which right responses are the same solution: the clusters of UCC@k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

ROUNDING = 1e-9  # a similarity this little under the threshold has reached it


def cluster_sizes(
    similarity: NDArray[np.float64],
    members: NDArray[np.int64],
    thresholds: Sequence[float],
    method: str,
) -> list[NDArray[np.int64]]:
    """For each threshold the number of responses in each cluster.

    similarity [U, U]; members [U]: responses with that text (0: it takes no part). method: `single`
    joins what a chain of similarities >= threshold connects, `complete` only what is so pairwise.
    """
    present = np.flatnonzero(members)
    members = members[present]
    if len(present) < 2:
        return [members for _ in thresholds]
    distance = 1 - similarity[np.ix_(present, present)].clip(max=1)
    tree = linkage(squareform(distance, checks=False), method)
    labels = [fcluster(tree, 1 - t + ROUNDING, "distance") - 1 for t in thresholds]
    return [np.bincount(label, members).astype(np.int64) for label in labels]
