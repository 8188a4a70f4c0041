"""What the supervisor is told of the outcomes it wants written, and what it counts by that."""

from __future__ import annotations

import asyncio
import contextlib

from fleet.lifecycle import Advanced, Completed, Released
from supervisor.finisher import Finisher
from tests.store.conftest import ALICE, BOB


async def told(table, *outcomes):
    """Have them written in Alice's name; return what is told of each, by its task."""
    heard = {}
    finisher = Finisher(table.db, ALICE, lambda w: heard.update({w.outcome.claim.id: w}), print)
    for outcome in outcomes:
        finisher.put(outcome)
    writing = asyncio.create_task(finisher.run())
    await finisher.emptied()
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    return heard, finisher.lost


async def test_r13_only_what_was_written_counts(table):
    await table.enqueue("1", "2")
    kept, lost = await table.claim(limit=2)
    await table.settle(ALICE, (lost, Released()))
    await table.claim(BOB)

    heard, losses = await told(
        table, table.outcome(kept, Completed('"fine"')), table.outcome(lost, Completed('"late"'))
    )
    assert heard[kept.id].word == "finish"
    assert heard[lost.id].word is None
    assert losses == {"images": 1}


async def test_f37_a_step_whose_value_was_refused_is_buried_and_nothing_goes_on(table):
    await table.enqueue("1", "2")
    fine, refused = await table.claim(limit=2)
    heard, _ = await told(
        table,
        table.outcome(fine, Advanced("two", "1")),
        table.outcome(refused, Advanced("two", '"nul \\u0000 inside"')),
    )
    assert (heard[fine.id].word, heard[fine.id].onward.step) == ("advance", "two")
    assert (heard[refused.id].word, heard[refused.id].onward) == ("bury", None)
    assert await table.state(refused.id) == "buried"
