"""The key of a server: it goes into the header of a request and nowhere else."""

import base64
import html
import json
import os
from itertools import groupby
from operator import itemgetter
from urllib.parse import quote, quote_plus

HIDDEN = "[the API key]"
PART = 8  # characters in a row that give a key away
LONGEST = 2000  # characters of a text from a server that are looked at


class ApiKey:
    """Of an environment variable; none where that is not set.

    Raises ValueError, which does not show it, for a key that no header can hold.
    """

    def __init__(self, variable: str) -> None:
        self._key = os.environ.get(variable, "").strip()
        if not all("!" <= c <= "~" for c in self._key):
            raise ValueError(
                f"the API key in the environment variable {variable} contains a space, a line "
                "break or a non-ASCII character. Set it again."
            )
        self._spellings = _spellings(self._key) if self._key else set()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def shown(self, text: str) -> str:
        """What a server or a library said, as one line, without the key or a part of it."""
        text = " ".join("".join(c if c.isprintable() else " " for c in text[:LONGEST]).split())
        lower = "".join(c.lower() if c.isascii() else c for c in text)
        covered = [False] * len(text)
        for spelling in self._spellings:
            length = min(PART, len(spelling))
            parts = {spelling[i : i + length].lower() for i in range(len(spelling) - length + 1)}
            for i in range(len(text) - length + 1):
                if lower[i : i + length] in parts:
                    covered[i : i + length] = [True] * length
        runs = groupby(zip(text, covered, strict=True), itemgetter(1))
        return "".join(HIDDEN if hide else "".join(c for c, _ in run) for hide, run in runs)

    def without(self, response: str) -> str:
        """A response that holds the whole key, such as of a server that sends headers back."""
        for spelling in self._spellings if len(self._key) >= PART else ():
            response = response.replace(spelling, HIDDEN)
        return response


def _spellings(key: str) -> set[str]:
    found = {key, quote(key), quote(key, safe=""), quote_plus(key), html.escape(key)}
    found |= {json.dumps(key)[1:-1], repr(key)[1:-1], key.encode().hex()}
    for before in ("", " ", "  "):  # where it stands in a text decides its Base64
        coded = base64.b64encode((before + key).encode()).decode().rstrip("=")
        found.add(coded[4:-2] if before else coded)
    return {spelling for spelling in found if len(spelling) >= min(PART, len(key))}
