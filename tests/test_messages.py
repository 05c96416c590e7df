"""Messages are plain English: a verb, short parts, keys in backticks, none of our old dialect.

What is wrong with the key's path and the value as written, why, what to do: CONTRIBUTING.md.
"""

import ast
import re
from itertools import islice, product
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "nemo_algos"
SECOND = {"Finding", "UnknownKey", "error", "warning", "note", "say", "found"}  # (key, message)
FIRST = {"ValueError", "TypeError", "OSError", "RuntimeError", "FloatingPointError", "Unjudged"}
FIRST |= {"_error", "Odd", "echo"}
REHEARSED = re.compile(r"stage\.(?:failed|warning|passed|unchecked)\b")  # (message, key)
VERBLESS = {"help", "echo"}  # "output folder"; a line of a table
LONGEST, VALUE, MOST = 200, "\0", 64
VERBS = """
accept account add allow appear apply are ask be belong bound build call can cannot change check
choose clip come compare compute confirm contain continue contradict control convert copy correct
could cover create decide declare define derive differ disable divide do does drop enable end
estimate evaluate exceed exclude exist expect explain export fail fill fit found free gather
generate get give gave got has have ignore include install is join keep knows lack leave let list
load log look lower make match mean measure merge miss missing mount move multiplies must name need
occur override pad pass put raise range rank reach read receive redirect refit refuse remember
remove rename repeat replace report requires reserve reset resume retry return route run sample save
say see send set shape share skip spread start stay stop store support take train treat turn unknown
use validate vary wait was watch will work would write
"""
ROOTS = "grpo|policy|loss_fn|method|data|env|checkpointing|cluster|logger|mismatch|model|sampling"
KEY = re.compile(rf"(?<![\w./@]) *\b(?:{ROOTS})\.[a-z]\w*(?:\.\w+)*")
FILE = re.compile(r"\.(?:ya?ml|jsonl?|py|npz|pt|md|csv|safetensors)$")
DIALECT = r"""
\bof (theirs|ours|its own)\b
\b(has|have) not\b(?! \w+ed)
\bthat there is not\b
\bstays so\b
\btold no more\b
\bto go on\b
\bmend\b
\bfor ever\b
\bleav\w+ (\w+ )?out\b
\bholds (?!the)
\bno such\b
^there is no\b
(?<!there )\bis no (?!longer)
\bswitch it off\b
\b(is|are) the \w+'s\b
\banyhow\b
\bno \w+ here\b
, for (it|its|they|there|other)\b
\bas asked\b
\bcalls itself\b
\bunder (no|which)\b
\bis of\b
 alone\b
\bmust stay\b
(?<![\w.])\.\d
"""
DIALECT = re.compile("|".join(DIALECT.strip("\n").split("\n")), re.IGNORECASE)
ENDS = ("", "s", "es", "d", "ed", "ing")


def assigned(node):
    """Each value that a name is given anywhere in the node."""
    found = {}
    for one in ast.walk(node):
        for target in one.targets if isinstance(one, ast.Assign) else ():
            both = isinstance(target, ast.Tuple) and isinstance(one.value, ast.Tuple)
            parts = (target.elts, one.value.elts) if both else ([target], [one.value])
            for name, value in zip(*parts, strict=False):
                if isinstance(name, ast.Name):
                    found.setdefault(name.id, []).append(value)
    return found


def texts(node, names):
    """What an expression may say; VALUE where it is known only at run time."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            each = product(*(texts(part, names) for part in parts))
            return ["".join(one) for one in islice(each, MOST)]
        case ast.FormattedValue(value=value):
            return texts(value, names)
        case ast.IfExp(body=body, orelse=other):
            return [*texts(body, names), *texts(other, names)]
        case ast.Name(id=name) if name in names:
            rest = {other: values for other, values in names.items() if other != name}
            return [text for value in names[name] for text in texts(value, rest)]
    return [VALUE]


def meant(func, names):
    """The called thing's source; that of the value if a local name stands for it."""
    value = names.get(getattr(func, "id", ""), [func])[0]
    return ast.unparse(value)


def messages(source):
    """(the call's name, message) of every error, finding and printed line, and of each help."""
    tree = ast.parse(source)
    top = ast.Module([x for x in tree.body if isinstance(x, ast.Assign)], [])
    for scope in [top, *(x for x in ast.walk(tree) if isinstance(x, ast.FunctionDef))]:
        names = assigned(top) | assigned(scope)
        for call in (x for x in ast.walk(scope) if isinstance(x, ast.Call)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            first = name in FIRST or REHEARSED.match(meant(call.func, names))
            place = 0 if first else 1 if name in SECOND else len(call.args)
            given = [(name, one) for one in call.args[place : place + 1]]
            given += [("help", k.value) for k in call.keywords if k.arg == "help"]
            yield from ((what, text) for what, one in given for text in texts(one, names))


@pytest.fixture(scope="module")
def said():
    """(file, call, message), each once."""
    return sorted(
        {
            (path.relative_to(PACKAGE).as_posix(), *one)
            for path in sorted(PACKAGE.rglob("*.py"))
            for one in messages(path.read_text())
        }
    )


def has_verb(text):
    """Or is of fewer than four words, the rest known only at run time."""
    said = re.findall(r"[a-z]+", text.lower())
    return len(said) < 4 or any(w.removesuffix(end) in VERBS.split() for w in said for end in ENDS)


def bare_keys(text):
    """Keys within a sentence outside backticks and quotes; the first may head it: `KEY: ...`."""
    rest = re.sub(r"`[^`]*`|'[^']*'|\"[^\"]*\"", "", text)
    rest = re.sub(r"^[\w.\0]+: ", "", rest)
    return [key for key in KEY.findall(rest) if not FILE.search(key) and key != text]


def test_a_message_has_a_verb(said):
    assert len(said) > 500
    assert [one for one in said if one[1] not in VERBLESS and not has_verb(one[2])] == []


def test_no_sentence_of_a_message_is_long(said):
    assert [one for one in said if max(map(len, one[2].split(". "))) > LONGEST] == []


def test_a_key_within_a_sentence_is_in_backticks(said):
    assert [one for one in said if bare_keys(one[2])] == []


def test_no_message_is_in_dialect(said):
    assert [(*one, DIALECT.search(one[2])[0]) for one in said if DIALECT.search(one[2])] == []


PLANTED = """
def rule(run, key):
    reason = "{0}"
    yield Finding(key, f"{{reason}}. {1}")
"""


def planted(reason, cure):
    return [text for _, text in messages(PLANTED.format(reason, cure))]


def test_what_is_wrong_with_a_message_is_seen():
    """In a text that is put together from parts."""
    (right,) = planted("it excludes `grpo.val_period`", "Set it to 0.")
    assert has_verb(right) and not bare_keys(right) and not DIALECT.search(right)
    (mute,) = planted("a group of one", "Eight or more.")
    assert not has_verb(mute)
    (bare,) = planted("it excludes grpo.val_period", "Set it to 0.")
    assert bare_keys(bare) == ["grpo.val_period"]
    (dialect,) = planted("it needs entropies, which TRL has not", "Set it to 0.")
    assert DIALECT.search(dialect)[0] == "has not"


def test_a_rehearsal_says_its_message_before_the_key():
    source = """
def judge(stage, bad):
    say = stage.failed if bad else stage.warning
    say("Mend it.", "data.train")
"""
    assert [text for _, text in messages(source)] == ["Mend it."]
