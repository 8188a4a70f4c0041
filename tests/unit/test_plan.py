"""Pools from settings: who serves what (R02–R04), and what a reload changes."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config import Rate
from fleet.errors import ConfigError
from fleet.settings import QueueSettings, RunSettings, SupervisorSettings, run_settings
from supervisor.plan import Changes, Plan, Pool, describe, diff, plan, strays

FILE = """
[supervisor]
concurrency = 10
[queues.default]
weight = 3
[queues.images]
processes = 4
concurrency = 1
limit = 20
rate = "100/s"
max_memory = "512MiB"
max_tasks = 10000
[queues.emails]
"""


def settings(text: str = FILE) -> RunSettings:
    return run_settings(tomllib.loads(text), {})


def planned(text: str = FILE, queues: object = (), cpus: int = 8) -> Plan:
    return plan(settings(text), cpus, queues=queues)


def pools(found: Plan) -> dict[str, Pool]:
    return {pool.name: pool for pool in found.pools}


# Queues that nobody would serve -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "queues", "words"),
    [
        ("[queues.a]", None, ["nobody would serve a", "[queues.a] processes = 1"]),
        ("[queues.a]", (), ["nobody would serve a"]),
        ("[queues.a]\nprocesses = 1\n[queues.b]", (), ["nobody would serve b"]),
        ("[queues.a]\nprocesses = 1", ["mail"], ["nobody would serve mail"]),
        (
            "[queues.a]\nprocesses = 1",
            {"mail": ["welcome", "bye"], "a": ["resize"]},
            ["nobody would serve mail (of bye, welcome)", "[queues.mail] processes = 1"],
        ),
        ("[queues.b]", {"c": ["x"]}, ["b, c (of x)"]),
        ("", None, ["nothing would run"]),
        ("", (), ["nothing would run"]),
    ],
)
def test_r03_a_queue_that_nobody_would_serve_is_an_error_that_names_it(text, queues, words):
    with pytest.raises(ConfigError) as refused:
        planned(f"[supervisor]\nprocesses = 0\n{text}", queues)
    for word in ("supervisor.processes = 0", *words):
        assert word in str(refused.value)


def test_r03_no_shared_pool_is_fine_where_every_queue_is_dedicated():
    found = planned("[supervisor]\nprocesses = 0\n[queues.a]\nprocesses = 2", ["a"])

    assert [(pool.name, pool.processes) for pool in found.pools] == [("a", 2)]


names = st.text("abc", min_size=1, max_size=2)


@given(
    configured=st.dictionaries(names, st.none() | st.integers(1, 4)),
    named=st.none() | st.sets(names),
    processes=st.just("auto") | st.integers(0, 4),
    cpus=st.integers(1, 64),
)
def test_r03_every_queue_is_served_by_exactly_one_pool_or_nothing_starts(
    configured, named, processes, cpus
):
    queues = tuple(QueueSettings(name=name, processes=n) for name, n in configured.items())
    wanted = RunSettings(supervisor=SupervisorSettings(processes=processes), queues=queues)
    try:
        found = plan(wanted, cpus, queues=named)
    except ConfigError:
        assert processes == 0
        return
    served = [queue for pool in found.pools for queue in pool.queues]

    assert sorted(served) == sorted(configured.keys() | (named or set()))
    assert sorted(queue.name for queue in found.queues) == sorted(served)
    assert all(pool.processes >= 1 for pool in found.pools)
    assert not diff(found, found)


# Shared and dedicated -----------------------------------------------------------------------------


def test_r02_the_shared_pool_serves_every_queue_that_is_not_dedicated():
    found = planned(queues=["images", "reports", "default", "billing"])
    shared = pools(found)["shared"]

    assert shared.queues == ("default", "emails", "billing", "reports")
    assert (shared.processes, shared.concurrency, shared.dedicated) == (8, 10, False)
    assert (shared.async_slots, shared.def_slots) == (80, 8)


def test_r02_a_dedicated_queue_has_a_pool_of_its_own():
    found = planned()
    images, served = pools(found)["images"], found.served("images")

    assert images == Pool(
        name="images",
        queues=("images",),
        processes=4,
        concurrency=1,
        dedicated=True,
        max_memory=512 * 1_048_576,
        max_tasks=10_000,
    )
    assert (images.async_slots, images.def_slots) == (4, 4)
    assert served is not None
    assert (served.pool, served.limit, served.rate) == ("images", 20, Rate(100, 1.0))
    assert found.processes == 12


def test_r02_what_a_dedicated_queue_leaves_open_is_as_the_supervisor_says():
    text = "[supervisor]\nconcurrency = 7\nmax_tasks = 5\n[queues.a]\nprocesses = 1"
    (a,) = planned(text, ["a"]).pools

    assert (a.concurrency, a.max_tasks, a.max_memory) == (7, 5, None)


def test_r02_without_a_configured_queue_the_shared_pool_serves_what_jobs_name():
    (pool,) = planned("", ["default"]).pools

    assert (pool.name, pool.queues) == ("shared", ("default",))


def test_the_shared_pool_is_planned_before_anybody_knows_the_jobs():
    text = "[queues.a]\nprocesses = 1"

    assert pools(planned(text, None)).keys() == {"a", "shared"}
    assert pools(planned(text, ["a"])).keys() == {"a"}
    assert pools(planned("", None)).keys() == {"shared"}
    assert pools(planned("", ())).keys() == {"shared"}


@pytest.mark.parametrize(
    ("processes", "cpus", "expected"), [('"auto"', 3, 3), ('"auto"', 0, 1), ("5", 3, 5)]
)
def test_auto_is_the_cpus_of_the_container(processes, cpus, expected):
    (pool,) = planned(f"[supervisor]\nprocesses = {processes}", ["a"], cpus).pools

    assert pool.processes == expected


# Balance ------------------------------------------------------------------------------------------


def test_r04_fair_gives_each_shared_queue_its_weight_in_slots():
    found = planned(queues=["reports"])

    assert found.balance == "fair"
    assert [(queue.name, queue.share) for queue in found.queues if queue.pool == "shared"] == [
        ("default", 0.6),
        ("emails", 0.2),
        ("reports", 0.2),
    ]
    assert found.served("images").share == 1.0


def test_r04_strict_goes_by_the_order_of_the_file_and_jobs_own_queues_come_last():
    text = "[supervisor]\nbalance = 'strict'\n[queues.z]\n[queues.d]\nprocesses = 1\n[queues.a]"
    found = planned(text, ["m", "b"])
    ranks = {queue.name: queue.rank for queue in found.queues if queue.pool == "shared"}

    assert found.balance == "strict"
    assert ranks == {"z": 0, "a": 1, "b": 2, "m": 3}


def test_r04_shares_of_any_weights_add_up():
    text = "".join(f"[queues.q{n}]\nweight = {n + 0.1}\n" for n in range(1, 30))
    found = planned(text)

    assert sum(queue.share for queue in found.queues) == pytest.approx(1)


# Reload -------------------------------------------------------------------------------------------


def test_a_reload_that_changes_nothing_does_nothing():
    changes = diff(planned(), planned())

    assert not changes
    assert changes == Changes()


def test_a_reload_starts_retires_and_resizes_pools():
    old = planned(FILE + "[queues.video]\nprocesses = 1\n")
    new = planned(
        FILE.replace("processes = 4", "processes = 2") + "[queues.audio]\nprocesses = 3\n"
    )
    changes = diff(old, new)

    assert [pool.name for pool in changes.start] == ["audio"]
    assert [pool.name for pool in changes.retire] == ["video"]
    assert [(change.new.name, change.processes) for change in changes.resized] == [("images", -2)]
    assert changes.retuned == ()
    assert [queue.name for queue in changes.queues] == ["audio"]
    assert changes.dropped == ("video",)


def test_a_queue_that_becomes_dedicated_leaves_the_shared_pool():
    new = FILE.replace("[queues.emails]", "[queues.emails]\nprocesses = 2")
    changes = diff(planned(), planned(new))

    assert [pool.name for pool in changes.start] == ["emails"]
    assert [change.new.queues for change in changes.retuned] == [("default",)]
    assert {queue.name: queue.pool for queue in changes.queues} == {
        "emails": "emails",
        "default": "shared",  # its share is another now
    }
    assert changes.dropped == ()


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("concurrency = 10", "concurrency = 20", "resized"),
        ("max_tasks = 10000", "max_tasks = 1", "retuned"),
        ('max_memory = "512MiB"', "", "retuned"),
        ("limit = 20", "limit = 21", "queues"),
        ('rate = "100/s"', 'rate = "1/s"', "queues"),
        ("weight = 3", "weight = 4", "queues"),
        ("weight = 3", "", "queues"),
    ],
)
def test_every_change_of_a_setting_is_seen(old, new, kind):
    changes = diff(planned(), planned(FILE.replace(old, new)))

    assert changes
    assert getattr(changes, kind)
    assert not changes.start
    assert not changes.retire


def test_another_balance_is_a_change():
    fair, strict = (f"[supervisor]\nbalance = '{word}'" for word in ("fair", "strict"))

    assert diff(planned(fair, ["a"]), planned(strict, ["a"])) == Changes(balance="strict")


def test_jobs_that_become_known_bring_their_queues():
    changes = diff(planned("", None), planned("", ["emails"]))

    assert [queue.name for queue in changes.queues] == ["emails"]
    assert [change.processes for change in changes.retuned] == [0]


# What is shown ------------------------------------------------------------------------------------


def test_the_summary_has_a_row_a_pool():
    assert [tuple(row) for row in describe(planned())] == [
        (
            *("images", "images", 4, "4 async, 4 def"),
            "recycled at 512 MiB, after 10,000 tasks; "
            "images: at most 20 at once in the fleet, no more than 100/s",
        ),
        ("shared", "default 75%, emails 25%", 8, "80 async, 8 def", ""),
    ]


@pytest.mark.parametrize(
    ("text", "queues", "shown"),
    [
        ("", None, "those that jobs name"),
        ("", ["a"], "a"),
        ("", ["a", "b", "c"], "a, b, c"),
        ("[supervisor]\nbalance = 'strict'", ["a", "b"], "a > b"),
    ],
)
def test_the_summary_shows_how_queues_share(text, queues, shown):
    assert describe(planned(text, queues))[0].queues == shown


def test_a_configured_queue_that_no_job_names_is_pointed_out():
    found = strays(settings("[queues.imagse]\nprocesses = 4\n[queues.zzz]"), ["images", "mail"])

    assert len(found) == 2
    assert "[queues.imagse]" in found[0]
    assert found[0].endswith("did you mean images?")
    assert "did you mean" not in found[1]
    assert strays(settings("[queues.a]"), ["a", "b"]) == []
