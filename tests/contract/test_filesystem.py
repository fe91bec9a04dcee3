"""Where SQLite may be kept: a decision over the text of mountinfo."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from perdure.store.filesystem import current_mountinfo, make_directories, network_type


def mount(point: str, kind: str) -> str:
    return f"36 35 98:0 /root {point} rw,noatime master:1 - {kind} /dev/root rw,errors=continue"


ROOT = mount("/", "ext4")


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "virtiofs",
        "fuse.sshfs",
        "fuse.rclone",
        "fuse.s3fs",
        "ceph",
        "vboxsf",
    ],
)
def test_network_type_of_a_mount_over_a_network(kind: str) -> None:
    assert network_type("/data/app/perdure.db", "\n".join([ROOT, mount("/data", kind)])) == kind


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuse.ntfs-3g"])
def test_network_type_of_a_local_mount(kind: str) -> None:
    assert network_type("/data/perdure.db", "\n".join([ROOT, mount("/data", kind)])) is None


def test_network_type_takes_the_innermost_mount() -> None:
    mounts = "\n".join([mount("/data", "nfs"), ROOT, mount("/data/local", "ext4")])
    assert network_type("/data/local/perdure.db", mounts) is None
    assert network_type("/data/perdure.db", mounts) == "nfs"


def test_network_type_takes_the_later_mount_on_one_point() -> None:
    assert network_type("/data/x", "\n".join([mount("/data", "nfs"), mount("/data", "ext4")])) is None
    assert network_type("/data/x", "\n".join([mount("/data", "ext4"), mount("/data", "nfs")])) == "nfs"


def test_network_type_does_not_take_a_name_for_a_directory() -> None:
    assert network_type("/database/x", "\n".join([ROOT, mount("/data", "nfs")])) is None


def test_network_type_reads_escaped_points() -> None:
    assert network_type("/my disk/x", "\n".join([ROOT, mount("/my\\040disk", "cifs")])) == "cifs"


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3 - ", "36 35 98:0 / / rw"])
def test_network_type_of_text_it_cannot_read(text: str) -> None:
    assert network_type("/data/x", text) is None


def test_network_type_without_optional_fields() -> None:
    assert network_type("/x", "36 35 98:0 / / rw - nfs4 server:/ rw") == "nfs4"


def test_current_mountinfo_of_this_system_is_read(tmp_path: Path) -> None:
    assert network_type(str(tmp_path.resolve()), current_mountinfo()) is None


def test_make_directories_leaves_existing_modes(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o755)
    make_directories(tmp_path / "old" / "new")
    make_directories(tmp_path / "old" / "new")
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "old" / "new").stat().st_mode) == 0o700
