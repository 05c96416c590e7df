"""What several files of evaluations begin with."""

import json

import pytest

from nemo_algos.lab.evals.benchmarks import load


@pytest.fixture
def read(tmp_path):
    """read(name, rows, ...) -> Loaded, through JSON lines."""

    def read(name, rows, **options):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load(name, str(path), **options)

    return read
