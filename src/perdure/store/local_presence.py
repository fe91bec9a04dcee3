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
from pathlib import Path

from perdure.store.presence import Presence


def open_presence(store: str) -> Presence | None:
    """The lock files of one store's workers, or None without a directory that is this user's alone."""
    directory = Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(directory)
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return None
    return Presence(str(directory / hashlib.sha256(store.encode()).hexdigest()[:16]))
