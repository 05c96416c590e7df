"""NEMO_ALGOS_PARITY=file.csv: where the comparisons write the largest differences they found."""

import os
import tempfile

import peer_cases

from nemo_algos.algorithms.rollouts import Rollouts

TRACKIO = tempfile.TemporaryDirectory()  # trackio reads this when it is imported, which TRL does
os.environ["TRACKIO_DIR"] = TRACKIO.name
# these suites compute with made-up numbers, of which some are no logarithms of probabilities
Rollouts.largest_logprob = float("inf")


def pytest_sessionfinish(session, exitstatus):
    if (path := os.environ.get("NEMO_ALGOS_PARITY")) and exitstatus == 0:
        peer_cases.write(path)


def pytest_configure(config):
    config.addinivalue_line("markers", "long: what `make test-trl` runs, and test-peers does not")
