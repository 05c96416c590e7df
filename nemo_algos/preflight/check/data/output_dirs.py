"""The folders that a run writes to, and the trackers that it logs to, as the config names them."""

import netrc
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nemo_algos.preflight.check.data.verdict import Verdict
from nemo_algos.preflight.check.layout import Run

PROBE = 1 << 20  # bytes; a full disk still takes an empty file
FOLDERS = ("checkpointing.checkpoint_dir", "logger.log_dir")
LOGINS = {  # tracker -> the variable with its key, the host of a login that its program stores
    "wandb": ("WANDB_API_KEY", "api.wandb.ai"),
    "swanlab": ("SWANLAB_API_KEY", ""),
}


def output_dirs(run: Run) -> Iterator[Verdict]:
    """A verdict for each folder and each tracker."""
    for key in FOLDERS:
        if run[key] and (key != FOLDERS[0] or run["checkpointing.enabled"]):
            yield _folder(key, Path(str(run[key])))
    for name in LOGINS:
        if run[f"logger.{name}_enabled"]:
            yield _login(name)


def _folder(key: str, folder: Path) -> Verdict:
    """Whether PROBE bytes can be written there, or in the nearest folder above that exists."""
    above = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=above) as file:
            file.write(bytes(PROBE))
    except OSError as error:
        message = (
            f"`{key}` is {folder}, which cannot be written: {error.strerror}. Name another folder."
        )
        return Verdict("folders", "failed", message, key)
    status = os.statvfs(above)
    free = status.f_bavail * status.f_frsize / 2**30
    message = f"`{key}` is {folder}: it can be written, and {free:,.3g} GiB are free."
    return Verdict("folders", "passed", message, key)


def _login(name: str) -> Verdict:
    variable, host = LOGINS[name]
    key = f"logger.{name}_enabled"
    mode = os.environ.get(f"{name.upper()}_MODE")
    if os.environ.get(variable) or mode in ("offline", "disabled"):
        return Verdict("folders", "passed", f"{name} has a key, or is offline.", key)
    with suppress(OSError, netrc.NetrcParseError):
        if host and netrc.netrc().authenticators(host):
            return Verdict("folders", "passed", f"{name} has a login in ~/.netrc.", key)
    message = (
        f"{name} has no login here, and asks for one when the run starts. "
        f"Set {variable}, or {name.upper()}_MODE=offline."
    )
    return Verdict("folders", "failed", message, key)
