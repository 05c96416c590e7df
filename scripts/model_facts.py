"""The facts of the shipped models, nemo_algos/preflight/check/models.json, from models.yaml.

    uv run scripts/model_facts.py      (tests/preflight/check/test_models.py holds it)

transformers builds each model, without memory, from what models.yaml says of its config.json.
"""

import json

from nemo_algos.preflight.check.known_models import HERE, configs, facts


def main() -> None:
    lines = []
    for name, values in configs().items():
        found = facts(values, name).model_dump(mode="json", exclude_defaults=True)
        lines.append(f"{json.dumps(name)}: {json.dumps(found)}")
    (HERE / "models.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
