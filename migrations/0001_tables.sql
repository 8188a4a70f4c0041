-- The tables. A task lives in fleet.task while it is live and nowhere else; when it ends, the
-- statement that ends it moves it to fleet.archive or fleet.buried.

-- All SQL asks this function for the time: of the statement, not of the transaction, or the delay
-- that a transactional step asks for would count from before the step. It is inlined, so it costs nothing; fleet.testing
-- replaces it in its own databases to move the clock.
create function fleet.now() returns timestamptz
language sql stable parallel safe
as 'select pg_catalog.statement_timestamp()';

-- A domain checks a name when it is written and never again: as a table constraint the same
-- pattern would be run at every claim and every step (measured: 0.25 µs each; with the bounded
-- repeat {0,62} in place of octet_length, 3.3 µs).
create domain fleet.name as text
    constraint allowed check (value ~ '^[a-z][a-z0-9_.-]*$' and octet_length(value) <= 63);

-- What a step is given. Measured as PostgreSQL prints it, because that is what a claim has to send: a
-- number like 1e131071 is nine bytes where it is written and 131,072 where it is read. A mebibyte of
-- JSON without spaces, which Fleet's clients allow, is at most half as much again with them. A
-- domain, as for names: checked when it is written, never by a claim.
create domain fleet.payload as jsonb
    constraint fits_in_1572864_bytes check (octet_length(value::text) <= 1572864);

-- What a row written by hand may say of counts and times: one past what an integer, or Python, can hold would
-- stop every claim and every write that it comes in. Domains too, checked only where a column is written.
create domain fleet.tally as int constraint bearable check (value between 0 and 500000000);
create domain fleet.fence as bigint constraint bearable check (value between 0 and 1000000000000000);
create domain fleet.moment as timestamptz constraint bearable
    check (value >= '1000-01-01 00:00+00' and value < '10000-01-01 00:00+00');

-- A task draws from here whenever it becomes ready: first in, first out inside a priority.
create sequence fleet.position;

create table fleet.task (
    id           bigint generated always as identity primary key,
    pos          bigint,                               -- place in the queue; only while ready or running
    fence        fleet.fence not null default 0,       -- grows with every claim and every step
    owner        bigint,                               -- who holds it; only while running
    enqueued_at  fleet.moment not null default fleet.now(),
    ready_at     fleet.moment not null default fleet.now(), -- when it became ready; while deferred: will become
    claimed_at   fleet.moment,
    due_at       fleet.moment,                         -- only while deferred, or waiting and not looked at yet
    visit        fleet.tally not null default 1,               -- grows with every step; part of the idempotency key
    failures     fleet.tally not null default 0,               -- of this step, against Retry.max_attempts
    crashes      fleet.tally not null default 0,               -- of this step, against the crash budget
    losses       fleet.tally not null default 0,               -- leases that ran out under this step
    releases     fleet.tally not null default 0,               -- hand-backs in a row, free of charge
    prior        fleet.tally not null default 0,               -- attempts of this step before its last revival
    priority     smallint not null default 0,
    rank         smallint not null,                    -- -2 × priority, + 1 unless in the front lane
    alone        boolean not null default false,       -- a suspect: must be the only one in its process
    granted      boolean not null default false,       -- holds its key
    counted      boolean not null default false,       -- runs under a limit; only while running
    state        text not null,
    queue        fleet.name not null,
    job          fleet.name not null,
    step         text not null default '',             -- '' = the job's first step, whoever runs it knows it
    key          text,
    waiting_for  text,                                 -- the key; only while waiting
    unique_slot  text,                                 -- given up when the scope says so
    unique_scope text,
    trace        text,                                 -- W3C traceparent of what comes before
    input        fleet.payload not null default 'null',
    progress     jsonb,
    error        jsonb,                                -- the last failure of this step
    constraint state_known check (state in ('ready', 'running', 'deferred', 'waiting')),
    constraint state_has_its_columns check (
        (pos is not null) = (state in ('ready', 'running'))
        and (owner is not null) = (state = 'running')
        and (waiting_for is not null) = (state = 'waiting')
        and (due_at is not null or state <> 'deferred')
        and (state = 'running' or not counted)),
    constraint rank_follows_priority check (
        priority between -10000 and 10000 and rank in (-2 * priority, -2 * priority + 1)),
    constraint trace_fits check (octet_length(trace) <= 512),
    constraint step_name_fits check (octet_length(step) <= 63),
    constraint key_fits check (char_length(key) between 1 and 255),
    constraint unique_fits check (
        char_length(unique_slot) between 1 and 255
        and (unique_slot is null or unique_scope in ('while_waiting', 'while_live')))
) with (
    -- Room on the page for the claimed and moved versions of a row: with it, and with no index on
    -- what a claim changes, claims and steps are HOT updates and write no index at all.
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_cost_delay = 0,
    -- Truncation takes a lock that conflicts with every claim.
    vacuum_truncate = off
);

-- The claim's index. Its columns and its predicate must stay untouched by a claim and by a step
-- that stays claimed, or those stop being HOT: so state is a filter, not part of the predicate.
-- Running rows lie before the watermark and are not walked.
create index task_line on fleet.task (queue, rank, pos) where pos is not null;

-- What is due, exactly when it is due; and the keyed tasks nobody has looked at yet, apart, so that
-- a million due retries do not hide one of them.
create index task_due on fleet.task (due_at) where due_at is not null and waiting_for is null;
create index task_fresh on fleet.task (due_at) where due_at is not null and waiting_for is not null;
create index task_waiting on fleet.task (queue, waiting_for, id) where waiting_for is not null;
-- Who holds a key, and who runs under a limit. For all others these columns never change, and what
-- does not change keeps an update HOT.
create index task_granted on fleet.task (queue, key) where granted;
create index task_counted_queue on fleet.task (queue) where counted;
create index task_counted_job on fleet.task (job) where counted;
create unique index task_unique on fleet.task (job, unique_slot) where unique_slot is not null;

-- Partitioned by the day on which a row may go, not the day on which it came: retention is then a
-- setting of each job, and pruning is still the drop of a whole partition.
create table fleet.archive (
    keep_until  timestamptz not null,
    id          bigint not null,
    fence       bigint not null,
    enqueued_at timestamptz not null,
    ready_at    timestamptz not null,
    started_at  timestamptz,                           -- of the final attempt; null if it never ran
    finished_at timestamptz not null,
    visit       int not null,
    attempt     int not null,
    failures    int not null,
    crashes     int not null,
    losses      int not null,
    releases    int not null,
    priority    smallint not null,
    outcome     text not null check (outcome in ('succeeded', 'cancelled')),
    queue       text not null,
    job         text not null,
    step        text not null,
    worker      text,
    key         text,
    trace       text,
    input       jsonb not null,
    result      jsonb,
    error       jsonb
) partition by range (keep_until);
create index archive_id on fleet.archive (id);
create table fleet.archive_default partition of fleet.archive default;
create index archive_default_until on fleet.archive_default (keep_until);
create index archive_default_finished on fleet.archive_default (finished_at);

-- Every attempt but a task's last, which is columns of the archived or buried row, if there is one.
create table fleet.attempt (
    keep_until timestamptz not null,
    task_id    bigint not null,
    fence      bigint not null,
    started_at timestamptz not null,
    ended_at   timestamptz not null,
    visit      int not null,
    attempt    int not null,
    queue      text not null,
    job        text not null,
    step       text not null,
    final      boolean not null default false,         -- after it the task was deleted, as its job says
    outcome    text not null check (outcome in
        ('next', 'snoozed', 'failed', 'timed_out', 'crashed', 'lost', 'released')),
    worker     text,
    error      jsonb
) partition by range (keep_until);
create index attempt_task on fleet.attempt (task_id, fence);
create index attempt_failed on fleet.attempt (ended_at) where error is not null;
create table fleet.attempt_default partition of fleet.attempt default;
create index attempt_default_until on fleet.attempt_default (keep_until);

-- The dead letters: everything that is needed to bring one back.
create table fleet.buried (
    id           bigint primary key,
    fence        bigint not null,
    buried_at    timestamptz not null,
    keep_until   timestamptz not null,
    enqueued_at  timestamptz not null,
    ready_at     timestamptz not null,
    started_at   timestamptz,
    visit        int not null,
    attempt      int not null,
    failures     int not null,
    crashes      int not null,
    losses       int not null,
    releases     int not null,
    prior        int not null,
    priority     smallint not null,
    reason       text not null check (reason in
        ('exhausted', 'fatal', 'undecodable', 'poison', 'unstorable')),
    queue        text not null,
    job          text not null,
    step         text not null,
    worker       text,
    key          text,
    unique_slot  text,
    unique_scope text,
    trace        text,
    input        jsonb not null,
    error        jsonb not null
);
create index buried_queue on fleet.buried (queue, buried_at);
create index buried_at on fleet.buried (buried_at);
create index buried_keep on fleet.buried (keep_until);

-- One row a supervisor's start. The lease is the counter: who watches it stand still for a whole
-- lease, by a clock of its own, may take the owner's tasks over.
create table fleet.owner (
    id         bigint generated always as identity primary key,
    beat       bigint not null default 0,
    started_at timestamptz not null default fleet.now(),
    beaten_at  timestamptz not null default fleet.now(),
    host       text not null,
    pid        int not null
) with (fillfactor = 50);

-- What the workers of the fleet know, so that SQL knows a job's queue and defaults. A row a
-- definition: two of one name live together during a rolling deploy.
create table fleet.job (
    name        fleet.name not null,
    fingerprint text not null,
    queue       fleet.name not null,
    step        text not null,
    priority    smallint not null,
    definition  jsonb not null,
    -- Of the first step, which a new task begins with; SQL cannot compute what is a Python function.
    key          text generated always as (definition #>> '{steps,0,key}') stored,
    key_computed boolean generated always as
        (coalesce((definition #> '{steps,0,key_computed}') = 'true', false)) stored,
    key_limit    int generated always as (coalesce((definition ->> 'key_limit')::int, 1)) stored,
    first_seen  timestamptz not null default fleet.now(),
    last_seen   timestamptz not null default fleet.now(),
    primary key (name, fingerprint)
);

-- Cancelling a running task must not lock its row: a caller's open transaction would hold up the
-- host that wants to finish it. So the wish stands here until its owner has seen it.
create table fleet.cancellation (
    task_id      bigint primary key,
    requested_at timestamptz not null default fleet.now(),
    requested_by text not null default session_user
);
