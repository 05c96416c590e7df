"""The folder of a run or an evaluation may come from anyone: it is data, and nothing outside it."""

from __future__ import annotations

from pathlib import Path


def refuse_links_out(folder: Path, pattern: str = "*") -> None:
    """Raises ValueError for a link out of the folder, which would read or overwrite another file,
    and for what is neither file nor folder, such as a pipe, which would be waited for."""
    root = folder.resolve()
    for path in folder.rglob(pattern):
        try:
            target = path.resolve()
        except (OSError, RuntimeError):  # links in a circle
            target = path
        if not target.is_relative_to(root) and target != path:
            raise ValueError(f"{path} is a link out of the folder, to {target}: put the file there")
        if not (target.is_file() or target.is_dir()):
            raise ValueError(f"{path} is neither a file nor a folder: remove it")
