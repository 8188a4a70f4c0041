"""``fleet task show``: the whole state of one task, its attempts, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click
import orjson
from rich.console import Console
from rich.text import Text

from fleet.cli.common import (
    STATE_STYLES,
    Database,
    Where,
    as_json,
    as_task_id,
    database_options,
    duration,
    local,
    out,
    print_json,
    run,
    safe,
    styled,
    table,
)
from fleet.cli.timeline import Stretch, draw
from fleet.model import Failure, TaskId
from fleet.store import tasks
from fleet.store.clock import now
from fleet.store.tasks import AttemptShown, Shown


@click.command()
@database_options
@click.argument("task_id", type=as_task_id, metavar="ID")
@click.option("--input", "with_input", is_flag=True, help="Its input too, which may be secret.")
@click.option("--result", "with_result", is_flag=True, help="Its result too, which may be secret.")
@as_json
def show(where: Where, task_id: TaskId, with_input: bool, with_result: bool, as_json: bool) -> None:
    """Show everything about a task: where it is, every attempt, its error, what to do next."""

    async def act(db: Database) -> tuple[Shown, list[AttemptShown], datetime]:
        async with db.conn.transaction(isolation="repeatable_read", readonly=True):
            return (
                await tasks.show(db.conn, task_id, with_input=with_input, with_result=with_result),
                await tasks.attempts(db.conn, task_id),
                await now(db.conn),
            )

    task, attempts, moment = run(where, act)
    if as_json:
        print_json(_as_dict(task, attempts))
        return
    _print(out(), task, attempts, moment)


def _as_dict(task: Shown, attempts: list[AttemptShown]) -> dict[str, Any]:
    told = asdict(task)
    for name in ("input", "result"):
        # Absent unless asked for, so that nobody takes null for the value.
        text = told.pop(name)
        if text is not None:
            told[name] = orjson.Fragment(text)
    told["attempts"] = [
        {**attempt._asdict(), "error": attempt.error and attempt.error.as_dict()}
        for attempt in attempts
    ]
    return told


def _print(console: Console, task: Shown, attempts: list[AttemptShown], moment: datetime) -> None:
    head = Text(f"Task {task.id}  ")
    head.append(task.state, style=STATE_STYLES[task.state])
    head.append(f"  {safe(task.job)}.{safe(task.step or '<first step>')} in {safe(task.queue)}")
    console.print(head)
    facts = table("name", "value", wrap=("value",))
    facts.show_header = False
    for name, value in _facts(task, moment):
        facts.add_row(Text(f"  {name}", style="dim"), styled(value))
    console.print(facts)
    for name, document in (("input", task.input), ("result", task.result)):
        if document is not None:
            console.print(f"\n{name.capitalize()}")
            console.print(safe(_indented(document)))
    if attempts or task.ended_at is None:
        _print_timeline(console, task, attempts, moment)
    if attempts:
        _print_attempts(console, attempts)
    if task.error is not None:
        _print_error(console, task.error)
    console.print()
    console.print(_next(task))


def _facts(task: Shown, moment: datetime) -> Iterator[tuple[str, str]]:
    yield "enqueued", f"{local(task.enqueued_at)} ({_ago(task.enqueued_at, moment)})"
    if task.state == "deferred" and task.due_at is not None:
        due = (task.due_at - moment).total_seconds()
        yield "due", f"{local(task.due_at)} ({f'in {duration(due)}' if due > 0 else 'now'})"
    if task.state == "waiting":
        holder = f", held by task {task.key_holder}" if task.key_holder else ""
        yield "waits", f"for the key {task.key!r}{holder}"
    if task.state == "running":
        yield "held by", f"owner {task.owner} on {task.host or 'an unknown host'}"
    if task.ended_at is not None:
        yield "ended", f"{local(task.ended_at)} ({_ago(task.ended_at, moment)})"
    if task.reason is not None:
        yield "buried", f"because it was {task.reason}"
    if task.cancel_requested_at is not None:
        yield "cancel", f"asked for {_ago(task.cancel_requested_at, moment)}"
    yield from _settings(task)
    if task.input is None:
        yield "input", f"{task.input_size:,} bytes of JSON; --input shows it"
    if task.result_size is not None and task.result is None:
        yield "result", f"{task.result_size:,} bytes of JSON; --result shows it"


def _settings(task: Shown) -> Iterator[tuple[str, str]]:
    yield "attempt", f"{task.attempt} of this step{_spent(task)}"
    yield "priority", str(task.priority)
    if task.key is not None:
        yield "key", task.key
    if task.unique_slot is not None:
        yield "unique", f"{task.unique_slot} ({task.unique_scope})"
    if isinstance(task.progress, dict):
        fraction = task.progress.get("fraction")
        share = f"{fraction:.0%} " if isinstance(fraction, int | float) else ""
        yield "progress", f"{share}{task.progress.get('message') or ''}".strip()
    if task.worker is not None:
        yield "worker", task.worker
    if task.trace is not None:
        yield "trace", task.trace
    if task.keep_until is not None:
        yield "kept until", local(task.keep_until)


def _spent(task: Shown) -> str:
    counts = [
        f"{count} {word}"
        for count, word in (
            (task.failures, "failed"),
            (task.crashes, "crashed"),
            (task.losses, "lost"),
            (task.releases, "handed back"),
        )
        if count
    ]
    return f" ({', '.join(counts)})" if counts else ""


def _print_timeline(
    console: Console, task: Shown, attempts: list[AttemptShown], moment: datetime
) -> None:
    def since(at: datetime) -> float:
        return max((at - task.enqueued_at).total_seconds(), 0.0)

    stretches: list[Stretch] = []
    ready = 0.0
    for attempt in attempts:
        started, ended = since(attempt.started_at), since(attempt.ended_at or moment)
        # A step that was taken on at once starts, by rounding, before the one before it ended.
        started = max(started, min(ready, ended))
        name = f"{safe(attempt.step)} #{attempt.attempt}"
        stretches.append(Stretch(name, min(ready, started), started, ended, attempt.outcome))
        ready = ended
    waiting = since(moment) if task.state in ("ready", "deferred", "waiting") else None
    console.print("\nTimeline")
    for line in draw(stretches, min(console.width - 44, 72), waiting):
        console.print(Text("  ") + line)


def _print_attempts(console: Console, attempts: list[AttemptShown]) -> None:
    console.print("\nAttempts")
    wrapped = ("  step", "worker", "error")
    rows = table("  step", "outcome", "started", "took", "worker", "error", wrap=wrapped)
    for attempt in attempts:
        ended = attempt.ended_at
        rows.add_row(
            styled(f"  {attempt.step} #{attempt.attempt}"),
            styled(attempt.outcome),
            local(attempt.started_at),
            "-" if ended is None else duration((ended - attempt.started_at).total_seconds()),
            styled(attempt.worker or "-"),
            styled(_brief(attempt.error)),
        )
    console.print(rows)


def _print_error(console: Console, error: Failure) -> None:
    console.print("\nError")
    console.print(styled(f"  {error.type}: {error.message}", "red"))
    if error.traceback:
        for line in error.traceback.rstrip().splitlines():
            console.print(styled(f"  {line}", "dim"), soft_wrap=True)


def _next(task: Shown) -> Text:
    match task.state:
        case "buried":
            told = f"Run it again: fleet task revive {task.id}   (--input JSON, --step NAME)"
        case "running" | "ready" | "deferred" | "waiting":
            told = f"Stop it: fleet task cancel {task.id}"
        case "succeeded" if task.result is None:
            told = f"Its result: fleet task show {task.id} --result"
        case _:
            told = f"Others of this job: fleet task list --job {task.job}"
    return Text(told)


def _ago(at: datetime, moment: datetime) -> str:
    return f"{duration((moment - at).total_seconds())} ago"


def _brief(error: Failure | None) -> str:
    if error is None:
        return "-"
    first = error.message.splitlines()[0] if error.message else ""
    return f"{error.type}: {first[:80]}"


def _indented(document: str) -> str:
    return orjson.dumps(orjson.loads(document), option=orjson.OPT_INDENT_2).decode()
