"""Where workers of one machine prove to each other that they live when their store is on a server: lock files as
beside a SQLite database, in a directory of the user's own. Decides only where they lie.

Nothing depends on it: where it cannot be had, or is another one for the peer (a container, another user), nothing is
proven here, and the server's lock and the lease decide.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path

from perdure.store import filesystem
from perdure.store.presence import Presence, remove_free

_STALE_S = 86400.0
"""A free lock file that is older belongs to a store nobody opens any more."""


def open_presence(store: str) -> Presence | None:
    """The lock files of one store's workers, or None without a local directory that is this user's alone."""
    try:
        directory = Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}"
        if not _is_lasting(directory.parent):
            return None
        directory.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return None
    _sweep(directory)
    return Presence(str(directory / hashlib.sha256(store.encode()).hexdigest()[:16]))


def _is_lasting(parent: Path) -> bool:
    """Not the current directory, which `tempfile` takes when there is nothing else, and not on a network."""
    given = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    places = {os.path.abspath(place) for place in (*given, "/tmp", "/var/tmp", "/usr/tmp") if place}
    mounts = filesystem.current_mountinfo()
    return str(parent) in places and filesystem.network_type(os.path.realpath(parent), mounts) is None


def _sweep(directory: Path) -> None:
    """Remove old files that nobody holds: most are removed by whoever buries their worker, not those of stores that are
    gone."""
    before = time.time() - _STALE_S
    for entry in os.scandir(directory):
        try:
            if entry.stat(follow_symlinks=False).st_mtime < before:
                remove_free(entry.path)
        except OSError:
            continue
