"""What a test asks of a message: whose key it is, and words that stay when it is rewritten."""

import re

PARTS = re.compile(r"((?:(?:warning|note) )?\S+: )?(.*)", re.DOTALL)


class Says:
    """Equal to any text that begins with this key and then has each of these words.

    expected: `KEY: WORD WORD`, `warning KEY: WORD`, or words alone. A word is a value, a name, a
    number, what no rewrite of the sentence takes away; it stands there whole: 1 is not in 12.
    """

    def __init__(self, expected: str) -> None:
        key, words = PARTS.fullmatch(expected).groups()
        self.key, self.words = key or "", words.split()

    def __eq__(self, text: object) -> bool:
        if not isinstance(text, str) or not text.startswith(self.key):
            return False
        return all(_has(text[len(self.key) :], word) for word in self.words)

    __hash__ = None

    def __repr__(self) -> str:
        return f"Says({self.key + ' '.join(self.words)!r})"


def _has(text: str, word: str) -> bool:
    return bool(re.search(rf"(?<![\w.]){re.escape(word)}(?!\w|\.\d)", text))
