"""Frames, boards and messages."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.lifecycle import Advance, Bury, Cancel, Finish, PutBack
from fleet.model import Failure
from fleet.store.outcomes import Outcome
from fleet.testing import make_context
from fleet.wire.board import Board
from fleet.wire.channel import MAX_FRAME, Channel
from fleet.wire.messages import pack_claim, pack_outcome, unpack_claim, unpack_outcome

ERROR = Failure(type="ValueError", message="bad", traceback="…")
BACK = PutBack(
    outcome="failed",
    delay=1.5,
    step="one",
    visit=1,
    failures=1,
    crashes=0,
    losses=0,
    releases=0,
    prior=0,
    alone=False,
    error=ERROR,
)


@pytest.mark.parametrize(
    "transition",
    [
        Finish('{"a":1}', keep=False),
        Advance("two", "5", 3),
        BACK,
        Bury("fatal", ERROR, 1, 2, 3),
        Cancel(),
    ],
    ids=lambda t: type(t).__name__,
)
def test_an_outcome_arrives_as_it_left(transition):
    claim = make_context()._claim
    outcome = Outcome(claim, transition, "worker", 0.5, 60.0, '{"one":[]}')
    travelled = orjson.loads(orjson.dumps(pack_outcome(outcome, 7)))
    assert unpack_outcome(claim, travelled, "worker") == (outcome, 7)


def test_a_claim_arrives_as_it_left():
    claim = make_context()._claim
    assert unpack_claim(orjson.loads(orjson.dumps(pack_claim(claim)))) == claim


async def pair():
    ours, theirs = socket.socketpair()
    got: asyncio.Queue = asyncio.Queue()
    end = asyncio.Event()
    channel = await Channel.open(ours, lambda k, b: got.put_nowait((k, b)), end.set)
    return channel, theirs, got, end


def frame(*message) -> bytes:
    payload = orjson.dumps(message)
    return struct.pack("<I", len(payload)) + payload


async def test_frames_may_come_in_any_pieces():
    channel, theirs, got, end = await pair()
    data = b"".join(frame("done", [n, "x" * n]) for n in range(50))
    loop = asyncio.get_running_loop()
    theirs.setblocking(False)
    for start in range(0, len(data), 7):
        await loop.sock_sendall(theirs, data[start : start + 7])
    for n in range(50):
        assert await got.get() == ("done", [n, "x" * n])
    theirs.close()
    await end.wait()
    channel.close()


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("<I", MAX_FRAME + 1) + b"x",
        struct.pack("<I", 5) + b"{]{]{",
        frame("only one thing")[:4] + b'"text"' + b"   " * 9,
        struct.pack("<I", 2) + b"17",
        struct.pack("<I", 3) + b"[1]",
    ],
)
async def test_a_frame_that_cannot_be_read_ends_the_channel(garbage):
    channel, theirs, got, end = await pair()
    theirs.sendall(garbage + b" " * 64)
    async with asyncio.timeout(5):
        await end.wait()
    assert got.empty()
    theirs.close()
    channel.close()


@given(st.binary(max_size=200))
def test_no_garbage_raises(data):
    ended = []
    channel = Channel(lambda k, b: None, lambda: ended.append(1))
    channel.data_received(data)


async def test_the_end_comes_after_everything_that_was_sent():
    _channel, theirs, got, end = await pair()
    theirs.sendall(frame("done", [1]) + frame("done", [2]))
    theirs.close()
    await end.wait()
    assert [got.get_nowait()[1] for _ in range(2)] == [[1], [2]]


def test_the_board_survives_the_process_that_wrote_it():
    fd = Board.create(4)
    reader = Board(fd, 4)
    child = os.fork()
    if child == 0:
        writer = Board(fd, 4)
        writer.enter(11, 1)
        slot = writer.enter(12, 5)
        writer.enter(13, 2)
        writer.leave(slot)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    assert [(r.task_id, r.fence) for r in reader.running()] == [(11, 1), (13, 2)]
    reader.close()
    os.close(fd)
