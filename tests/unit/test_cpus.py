"""What a container may use, read from made-up machines: cgroup v1, v2, both, none, and garbage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.cpus import Memory, cpus, memory, memory_limit, memory_usage

Machine = Callable[[dict[str, str]], Path]

MIB = 1_048_576
MOUNT_V2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
MOUNT_CPU = "33 31 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
MOUNT_MEMORY = "35 31 0:32 {top} /sys/fs/cgroup/memory rw master:9 - cgroup cgroup rw,memory\n"
ROOT_MOUNT = "23 1 8:1 / / rw,relatime - ext4 /dev/root rw\n"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    def build(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return build


def v2(path: str = "/", **files: str) -> dict[str, str]:
    """A machine with cgroup v2; ``files`` are below the mount."""
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": ROOT_MOUNT + MOUNT_V2,
    } | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}


def v1(path: str = "/", top: str = "/", **files: str) -> dict[str, str]:
    return {
        "proc/self/cgroup": f"9:name=systemd:/\n4:memory:{path}\n1:cpu,cpuacct:{path}\n",
        "proc/self/mountinfo": ROOT_MOUNT
        + MOUNT_CPU.format(top=top)
        + MOUNT_MEMORY.format(top=top),
    } | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}


# Garbage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"proc/self/cgroup": "0::/\n"},
        {"proc/self/mountinfo": MOUNT_V2},
        {"proc/self/cgroup": "garbage\n::\n0:\n", "proc/self/mountinfo": "a b c\n - \n\n"},
        v2(),
        v2("/gone/elsewhere"),
        v2("/../../other"),
        v2("relative"),
        v2("/nul\0/x"),
        v2(**{"cpu.max": ""}),
        v2(**{"cpu.max": "max 100000\n"}),
        v2(**{"cpu.max": "max"}),
        v2(**{"cpu.max": "-5 100000"}),
        v2(**{"cpu.max": "200000 0"}),
        v2(**{"cpu.max": "0 100000"}),
        v2(**{"cpu.max": "many few"}),
        v2(**{"cpu.max": "9" * 5_000}),
        v2(**{"cpu.max": "²"}),
        v1(),
        v1(**{"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}),
        v1(**{"cpu,cpuacct/cpu.cfs_quota_us": "200000\n"}),
        v1(**{"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "0"}),
    ],
)
def test_what_is_missing_or_makes_no_sense_limits_nothing(machine, files):
    root = machine(files)

    assert cpus(root, affinity=6) == 6
    assert memory(root) == Memory(None, None)


def test_a_folder_in_the_place_of_a_file_limits_nothing(machine):
    root = machine(v2(**{"cpu.max/x": ""}))

    assert cpus(root, affinity=6) == 6


def test_bytes_that_are_no_text_limit_nothing(machine):
    root = machine(v2())
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_bytes(b"\xff\xfe 100000")

    assert cpus(root, affinity=6) == 6


# CPUs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [
        ("400000 100000", 8, 4),
        ("400000 100000", 2, 2),
        ("400000", 8, 4),
        ("200000 50000", 8, 4),
        ("150000 100000", 8, 1),  # down: see the comment in the module
        ("190000 100000", 8, 1),
        ("250000 100000", 8, 2),
        ("50000 100000", 8, 1),
        ("1000 100000", 8, 1),
        ("max 100000", 8, 8),
        ("max 100000", 0, 1),
    ],
)
def test_a_quota_of_v2_counts_as_whole_cpus(machine, quota, affinity, expected):
    root = machine(v2("/", **{"cpu.max": f"{quota}\n"}))

    assert cpus(root, affinity=affinity) == expected


@pytest.mark.parametrize(
    ("own", "pod", "top", "expected"),
    [
        ("300000 100000", "max 100000", "max 100000", 3),
        ("max 100000", "300000 100000", "max 100000", 3),
        ("500000 100000", "200000 100000", "400000 100000", 2),
        ("max 100000", "max 100000", "100000 100000", 1),
    ],
)
def test_the_smallest_quota_on_the_way_up_wins(machine, own, pod, top, expected):
    files = {"pod/app/cpu.max": own, "pod/cpu.max": pod, "cpu.max": top}
    root = machine(v2("/pod/app", **files))

    assert cpus(root, affinity=16) == expected


def test_a_sibling_limits_nobody_else(machine):
    root = machine(v2("/pod/app", **{"pod/other/cpu.max": "100000 100000"}))

    assert cpus(root, affinity=16) == 16


def test_a_quota_of_v1_counts_on_every_level(machine):
    folder = "cpu,cpuacct"
    root = machine(
        v1(
            "/pod/app",
            **{
                f"{folder}/pod/app/cpu.cfs_quota_us": "-1\n",
                f"{folder}/pod/app/cpu.cfs_period_us": "100000\n",
                f"{folder}/pod/cpu.cfs_quota_us": "300000\n",
                f"{folder}/pod/cpu.cfs_period_us": "100000\n",
            },
        )
    )

    assert cpus(root, affinity=16) == 3


def test_without_a_cgroup_namespace_the_container_is_the_top_of_the_mount(machine):
    # As in Docker on v1: the path is the host's, and the mount shows only what is below it.
    root = machine(
        v1(
            "/docker/4f5e",
            top="/docker/4f5e",
            **{
                "cpu,cpuacct/cpu.cfs_quota_us": "200000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": str(512 * MIB),
            },
        )
    )

    assert cpus(root, affinity=16) == 2
    assert memory_limit(root) == 512 * MIB


def test_a_hybrid_machine_is_read_both_ways(machine):
    files = v1(
        **{"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    )
    files["proc/self/cgroup"] += "0::/unit\n"
    files["proc/self/mountinfo"] += MOUNT_V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    root = machine(files)
    assert cpus(root, affinity=16) == 3

    machine({"sys/fs/cgroup/unified/unit/cpu.max": "200000 100000"})
    assert cpus(root, affinity=16) == 2


def test_a_mount_point_with_a_space_is_found(machine):
    files = v2()
    files["proc/self/mountinfo"] = MOUNT_V2.replace("/sys/fs/cgroup", r"/my\040groups")
    root = machine(files | {"my groups/cpu.max": "200000 100000"})

    assert cpus(root, affinity=16) == 2


def test_this_machine_has_at_least_one_and_no_more_than_there_are():
    assert 1 <= cpus() <= (os.cpu_count() or 1)


def test_where_there_is_no_affinity_the_cpus_are_counted(machine, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 10)
    assert cpus(machine({})) == 10

    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpus(machine({})) == 1


# Memory -------------------------------------------------------------------------------------------


def test_usage_is_the_working_set_as_the_kubelet_counts_it(machine):
    root = machine(
        v2(
            "/app",
            **{
                "app/memory.max": f"{512 * MIB}\n",
                "app/memory.current": f"{300 * MIB}\n",
                "app/memory.stat": f"anon 7\ninactive_file {100 * MIB}\nactive_file 9\n",
            },
        )
    )

    assert memory(root) == Memory(512 * MIB, 200 * MIB)
    assert (memory_limit(root), memory_usage(root)) == (512 * MIB, 200 * MIB)
    assert memory(root).fraction == pytest.approx(200 / 512)


def test_v1_counts_what_is_below_too_and_its_largest_number_is_no_limit(machine):
    root = machine(
        v1(
            "/app",
            **{
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/app/memory.limit_in_bytes": f"{256 * MIB}\n",
                "memory/app/memory.usage_in_bytes": f"{128 * MIB}\n",
                "memory/app/memory.stat": f"inactive_file 5\ntotal_inactive_file {28 * MIB}\n",
            },
        )
    )

    assert memory(root) == Memory(256 * MIB, 100 * MIB)


def test_the_limit_that_is_nearest_to_being_met_counts_with_its_own_usage(machine):
    # The container has room; the pod around it, shared with a sidecar, has none.
    root = machine(
        v2(
            "/pod/app",
            **{
                "pod/app/memory.max": str(400 * MIB),
                "pod/app/memory.current": str(100 * MIB),
                "pod/memory.max": str(500 * MIB),
                "pod/memory.current": str(490 * MIB),
            },
        )
    )

    assert memory(root) == Memory(500 * MIB, 490 * MIB)
    assert memory(root).fraction > 0.95


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "max\n", "memory.current": "5000"}, Memory(None, 5000)),
        ({"memory.max": "1000"}, Memory(1000, None)),
        ({"memory.max": "0", "memory.current": "10"}, Memory(None, 10)),
        ({"memory.max": "1000", "memory.current": "lots"}, Memory(1000, None)),
        (
            {"memory.max": "1000", "memory.current": "10", "memory.stat": "inactive_file 50"},
            Memory(1000, 0),
        ),
        (
            {"memory.max": "1000", "memory.current": "10", "memory.stat": "inactive_file x"},
            Memory(1000, 10),
        ),
    ],
)
def test_memory_that_is_not_limited_or_not_known(machine, files, expected):
    root = machine(v2(**files))

    assert memory(root) == expected
    assert memory(root).fraction <= 1
