"""The CPUs and the memory that this process may use.

Containers are control groups, to which the kernel may allow less than the machine has.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def usable_cpu_count() -> int:
    """CPUs that this process may use: its affinity, limited by its cgroup's quota."""
    try:
        n_cpus = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not on macOS and Windows; a sandbox refuses
        n_cpus = os.cpu_count() or 1
    quota = _cgroup_cpu_quota()
    return max(1, n_cpus if quota is None else min(n_cpus, quota))


def _cgroup_cpu_quota() -> int | None:
    # cgroup v2, "max" or "<quota> <period>" in microseconds (kernel docs, cpu.max).
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None


@cache
def usable_memory_nbytes() -> int | None:
    """Memory that this process may use: the machine's, limited by those of its cgroups.

    None if the system does not say.
    """
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None
    return min([total, *_cgroup_memory_limits()]) if total > 0 else None


def _cgroup_memory_limits() -> list[int]:
    """Limits of the control groups that this process is in, of either version.

    In a container the kernel reports the group's path on the machine, but only the
    group's own directory is mounted. So all parents of the path are tried, up to the
    root.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(root):
                limits += _number_in(directory / name)
    return limits


def _number_in(path: Path) -> list[int]:
    try:
        return [int(path.read_text())]
    except (OSError, ValueError):  # none there, or "max"
        return []
