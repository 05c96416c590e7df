"""A config of a stranger takes neither all memory nor for ever, and shows no secret."""

import json
import os

import pytest

from nemo_algos import config
from nemo_algos.config import ConfigError, as_written
from tests.commands import invoke

LAUGH = "\n".join(f'a{n + 1}: "{10 * f"${{a{n}}}"}"' for n in range(12))
SECTIONS = "\n".join(f"s{n + 1}: {{a: '${{s{n}}}', b: '${{s{n}}}'}}" for n in range(30))
CHAIN = "\n".join(f"c{n + 1}: ${{c{n}}}" for n in range(5000))
HOSTILE = {
    "laughs": f"a0: lol\n{LAUGH}",
    "laughs of one long text": f"a0: {100_000 * 'x'}\na1: '{2_000 * '${a0}'}'",
    "laughs by a name that another gives": "a0: lol\nn0: '0'\n"
    + "\n".join(f"n{i}: '{i}'\na{i}: '{10 * f'${{a${{n{i - 1}}}}}'}'" for i in range(1, 12)),
    "laughs by select": "a0: lol\n"
    + "\n".join(f"a{i}: '{10 * f'${{oc.select:a{i - 1}}}'}'" for i in range(1, 12)),
    "sections": f"s0: {{x: 1}}\n{SECTIONS}",
    "a chain": f"c0: 1\n{CHAIN}",
    "a ring": "a: ${b}\nb: ${a}",
    "anchors": "a: &a [x, x]\n"
    + "\n".join(f"b{n}: &b{n} [{10 * f'*b{n - 1},'}]" for n in range(1, 12)).replace("*b0", "*a"),
    "depth": "a: " + 100_000 * "[",
    "code": "a: !!python/object/apply:os.system [true]",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_ends_in_a_sentence(name, tmp_path):
    path = tmp_path / "hostile.yaml"
    path.write_text(HOSTILE[name])
    with pytest.raises(ConfigError) as error:
        config.load(path)
    assert len(str(error.value)) < 2000


def test_one_key_alone_is_bounded_too(tmp_path):
    """Commands look at `engine` before they resolve the whole."""
    path = tmp_path / "hostile.yaml"
    path.write_text(f"a0: lol\n{LAUGH}\nengine: ${{a12}}\nmethod: grpo\n")
    for command in ("check", "train", "plan"):
        done = invoke(command, str(path))
        assert done.exit_code in (1, 2) and len(done.output) < 5000, command


@pytest.mark.parametrize("place", ["itself", "its parent"])
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
def test_what_is_no_file_is_not_waited_for(place, kind, tmp_path):
    path = tmp_path / "odd.yaml"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    if place == "its parent":
        path = tmp_path / "mine.yaml"
        path.write_text("defaults: odd.yaml\n")
    done = invoke("check", str(path))
    said = done.output.replace("\n", "")
    assert done.exit_code in (1, 2) and ("odd.yaml" in said or "/dev/zero" in said)


SECRETS = {
    "a line": "sk-SECRET-1234567890",
    "lines": "-----BEGIN KEY-----\nSECRETSECRET1234\n-----END KEY-----",
    "a quote": "sk-'SECRET'-1234567890",
    "both quotes": "sk-'SECRET\"-1234567890",
    "a backslash": "sk-\\SECRET\\-1234567890",
    "a letter that is not printed": "sk-\x07SECRET-1234567890",
    "a letter of another alphabet": "sk-SECRET-ключ-1234567890",
}


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("given", ["${oc.env:MINE}", "x ${oc.env:MINE} y"])
def test_no_message_shows_what_the_environment_holds(name, given, monkeypatch, tmp_path):
    monkeypatch.setenv("MINE", SECRETS[name])
    path = tmp_path / "mine.yaml"
    path.write_text(f"defaults: etr.yaml\ngrpo: {{seed: '{given}'}}\n")
    nemo = tmp_path / "nemo.yaml"
    nemo.write_text(f"defaults: nemo_rl.yaml\ngrpo: {{seed: '{given}'}}\n")
    for words in (["check", path], ["train", path], ["check", path, "--json"], ["check", nemo]):
        done = invoke(*map(str, words))
        assert done.exit_code in (1, 2) and "SECRET" not in done.output, words
        assert "seed" in done.output
    value = config.load(path)["grpo"]["seed"]
    assert SECRETS[name] in value
    for shown in (value, repr(value), json.dumps(value), str({"a": value})):
        assert "SECRET" not in as_written(shown)
