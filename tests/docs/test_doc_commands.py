"""Shell commands of the docs stand where `make test-docs` finds them, and it sees a wrong one."""

import re

import doc_commands
import pytest
from doc_commands import FENCE, NEEDS, ROOT, Block, blocks, ci_commands, complaint, pages

SHELL = re.compile(
    r"^[ \t]*(?:\$ )?(?:[A-Z_]+=\S+ )*"
    r"(?:uv run|nemo-algos|make|python3?|git|export|pip3?|docker|srun|sbatch|vllm|curl|cd) \S",
    re.MULTILINE,
)
INDENTED = re.compile(r"^(?: {4,}|\t)\S.*", re.MULTILINE)
UNSEEN = {"sh", "shell", "console", "zsh", "shell-session"}


def hidden(text):
    """Shell commands that no ```bash block holds: indented, or in a block of another language."""
    indented = INDENTED.findall(FENCE.sub("", text))
    elsewhere = [b.body for b in blocks(text) if b.language in ("", "text")]
    return [line for line in indented if SHELL.match(line)] + [
        found for body in elsewhere for found in SHELL.findall(body)
    ]


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_every_command_is_in_a_block_that_runs_or_says_what_it_needs(page):
    text = page.read_text()
    found = blocks(text)
    assert 2 * len(found) == len(re.findall(r"^[ \t]*```", text, re.MULTILINE))
    assert not hidden(text)
    assert not {b.language for b in found} & UNSEEN
    for block in found:
        if block.language == "bash":
            assert block.marks <= {"fails"} or block.marks <= NEEDS, (block.line, block.marks)


PAGE = """\
# A page
```bash
echo "a b"   # a remark
```
- in a list
  ```bash gpu network
  nvidia-smi |
    cat
  ```

```bash fails
ls nowhere
```
```text
ls: no such file
...
```

```bash
ls
```
prints
```text
a
```
"""


def test_blocks_of_a_page():
    found = blocks(PAGE)
    assert [b.language for b in found] == ["bash", "bash", "bash", "text", "bash", "text"]
    assert [b.line for b in found] == [2, 6, 11, 14, 19, 23]
    assert found[1].body == "nvidia-smi |\n  cat\n"
    assert found[1].marks == {"gpu", "network"}
    assert [b.shown for b in found] == ["", "", "ls: no such file\n...\n", "", "", ""]
    assert [doc_commands.runs(b) for b in found] == [True, False, True, False, True, False]


@pytest.mark.parametrize(
    "text",
    [
        "words\n\n    uv run pytest\n",
        "- words\n\n\tPYTHONPATH=. python x.py\n",
        "```text\n$ nemo-algos methods\n```\n",
        "```\ngit clone x\n```\n",
    ],
)
def test_a_command_elsewhere_is_seen(text):
    assert hidden(text)


def test_words_are_no_commands():
    assert not hidden("    make-believe\n\n```text\nerror: git is missing\n```\nuv run x\n")


@pytest.mark.parametrize(
    ("marks", "status", "output", "wrong"),
    [
        ("", 0, "", ""),
        ("", 3, "", "exit status 3"),
        ("fails", 2, "before\n  no  such x\n", ""),
        ("fails", 2, "no such y\n", "does not print 'no such x'"),
        ("fails", 0, "no such x\n", "exit status 0, where an error is expected"),
        ("fails", 1, "Traceback\nno such x\n", "a traceback, where an error is expected"),
    ],
)
def test_how_a_block_ends(marks, status, output, wrong):
    block = Block("bash", frozenset(marks.split()), "x", 1, "no such x\n...\n")
    assert complaint(block, status, output) == wrong


def test_a_page_runs_in_its_folder_until_a_block_is_wrong(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```bash\ntest -f a/b.py && echo 1 > one\nmake tests   # a remark\n```\n"
        "```bash gpu\ntouch never\n```\n```bash\ncat one; cat two | cat\n```\n"
        "```bash\ntouch never\n```\n```python\n# a/b.py\n```\n"
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    wrong = doc_commands.run(page, folder, {"make tests"})
    assert "page.md:8: exit status 1\ncat one; cat two | cat\n" in wrong
    assert "1\n" in wrong and "two: No such file" in wrong
    assert sorted(p.name for p in folder.iterdir()) == ["a", "one"]


def test_what_is_left_to_ci_is_there():
    assert {"make test", "make test-docs", "make check"} <= ci_commands()
    assert "done" not in ci_commands()  # a page's own loops end with it
    targets = (ROOT / "Makefile").read_text()
    assert f"\ntest:\n\t{doc_commands.TESTS}\n" in targets
    for line in ci_commands():
        if line.startswith("make "):
            assert f"\n{line.split()[1]}:" in targets
