"""The peers' own virtual environment, and the facts that a table of figures must carry."""

import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "peers" / "requirements.txt"
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


def peers_python(work: Path) -> str:
    """The interpreter of the peers' environment; built on the first run and whenever the pins change."""
    directory = work / "peers-venv"
    python, stamp = directory / "bin" / "python", directory / "requirements.txt"
    if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
        return str(python)
    print(f"installing the peers into {directory} (once)", file=sys.stderr)
    venv.create(directory, with_pip=True, clear=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], check=True)
    shutil.copy(REQUIREMENTS, stamp)
    return str(python)


def versions(python: str) -> dict[str, str]:
    """What is installed on both sides, by distribution name."""
    pinned = [line.split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line]
    code = "import sys, importlib.metadata as m; print(*[m.version(n.split('[')[0]) for n in sys.argv[1:]])"
    names = [name for name, _ in pinned]
    installed = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
    found = dict(zip(names, installed.stdout.split(), strict=True))
    try:
        own = metadata.version("perdure")
    except metadata.PackageNotFoundError:  # measuring only the peers from a bare interpreter
        own = "not installed"
    return {"perdure": own, **found}


def machine(work: Path) -> dict[str, str]:
    """The hardware, system and disk of this run."""
    return {
        "cpu": f"{os.cpu_count()} x {_cpu_model()}",
        "memory_gb": str(round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9)),
        "system": f"{platform.system()} {platform.release()}",
        "disk": file_system(work),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }


def file_system(path: Path) -> str:
    """Type of the file system that holds ``path``. Raises ``SystemExit`` when it is memory, not a disk."""
    holder, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except FileNotFoundError:
        return kind
    for mount in mounts:
        _, point, found, *_ = mount.split()
        if path.resolve().is_relative_to(point) and len(point) >= len(holder):
            holder, kind = point, found
    if kind in _MEMORY_FILE_SYSTEMS:
        raise SystemExit(f"{path} is on {kind}: durability costs nothing there. Choose --work-dir on a disk.")
    return kind


def load() -> str:
    """The machine's load averages: figures taken beside other work are worth less."""
    return " ".join(f"{value:.1f}" for value in os.getloadavg())


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
