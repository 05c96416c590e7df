import os

import pytest
from situations import SITUATIONS, Judge


@pytest.fixture(scope="module", params=SITUATIONS)
def judge(request):
    """A judge in each situation that this machine and user can be brought into."""
    as_root, refused = SITUATIONS[request.param]
    if as_root and os.getuid() != 0:
        pytest.skip("only root can be root")
    judge = Judge(request.param)
    words = "; ".join(judge.protections)
    if not refused and "namespaces" not in words:
        pytest.skip("this system refuses namespaces")
    if "system calls" not in words:
        pytest.skip("this kernel has no filters, and the programs would do what they try")
    assert ("namespaces" in words) == (not refused)
    assert ("Landlock" in words) <= ("landlock_create_ruleset" not in refused)
    assert ("user" in words) == as_root
    yield judge
    judge.close()
