"""Which file systems SQLite may be kept on. Decides from the text of `/proc/self/mountinfo`; touches no
database.

WAL needs shared memory and POSIX locks that hold between all users of the file; over a network or a bridge to
another kernel they do not, and the file is corrupted within minutes of concurrent use.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# fmt: off
NETWORK_TYPES = frozenset((
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fakeowner", "gfs2",
    "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "osxfs", "prl_fs",
    "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs",
))
# fmt: on
"""Types as mountinfo names them; of `fuse.<name>` any that reaches over a network or to a host counts."""

_FUSE = re.compile(
    r"fuse\.(sshfs|.*s3.*|rclone|gcsfuse|blobfuse2?|ceph|glusterfs|davfs2?|vmhgfs-fuse|grpcfuse|osxfs|juicefs"
    r"|seaweedfs|gvfsd.*|smb.*|nfs.*|curlftpfs)"
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_type(path: str, mountinfo: str) -> str | None:
    """The type of the network file system that `path` (absolute, without symlinks) is on, or None if it is
    local.

    `mountinfo` is the text of `/proc/self/mountinfo`; a later mount on the same point hides an earlier one.
    """
    best, found = -1, ""
    for line in mountinfo.splitlines():
        point, kind = _mount(line)
        if _is_inside(path, point) and len(point) >= best:
            best, found = len(point), kind
    return found if found in NETWORK_TYPES or _FUSE.fullmatch(found) else None


def current_mountinfo() -> str:
    """The mounts this process sees; empty where the system does not tell."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def make_directories(path: Path) -> None:
    """Create missing directories down to `path`, for the owner only. Existing ones keep their mode."""
    missing = [entry for entry in (path, *path.parents) if not entry.exists()]
    for entry in reversed(missing):
        try:
            os.mkdir(entry, 0o700)
        except FileExistsError:
            pass


def _mount(line: str) -> tuple[str, str]:
    # id parent major:minor root point options [optional]... - type source options
    before, _, after = line.partition(" - ")
    fields, kinds = before.split(" "), after.split(" ")
    if len(fields) < 6 or not kinds[0]:
        return "", ""
    return _OCTAL.sub(lambda code: chr(int(code.group(1), 8)), fields[4]), kinds[0]


def _is_inside(path: str, point: str) -> bool:
    return bool(point) and (point == "/" or path == point or path.startswith(point + "/"))
