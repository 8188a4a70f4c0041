-- What people do to tasks: cancel and revive, and the record of it; and what autoscalers ask.

-- What people have told the fleet. Each function that does something writes its own line, in its own
-- transaction: there is none for what was rolled back, and nothing is done without one.
create table fleet.log (
    id     bigint generated always as identity primary key,
    at     timestamptz not null default fleet.now(),
    who    text not null,                        -- who said so, by its own account
    role   text not null default session_user,   -- by PostgreSQL's
    what   text not null,                        -- 'queue.pause', 'task.cancel', …
    target text,                                 -- the queue, task, schedule or host it was said to
    detail jsonb not null default '{}'
);
create index log_at on fleet.log (at);

-- Write a line; return its number.
create function fleet.note(
    what text, target text default null, detail jsonb default '{}', by text default null)
returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    insert into fleet.log (who, what, target, detail)
    values (coalesce(left(nullif(note.by, ''), 255), session_user), note.what, note.target,
            jsonb_strip_nulls(coalesce(note.detail, '{}')))
    returning id
$$;

-- How long the history of a step's task stays, if a worker has said what that is.
create function fleet.keep_of(job text, step text) returns interval
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select coalesce((select coalesce((select s.step -> 'keep'
                                        from jsonb_array_elements(j.definition -> 'steps') s (step)
                                       where s.step ->> 'name' = keep_of.step limit 1),
                                     j.definition -> 'steps' -> 0 -> 'keep')::float8
                       from fleet.definition_of(keep_of.job) j), 1209600) * interval '1 s'
$$;

-- Cancel one task. 'cancelled': it will not run again. 'requested': it runs now, and its owner is
-- told. 'ended': too late. null: there is no such task.
create function fleet.cancel(task_id bigint, by text default null) returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    live fleet.task;
    said text := 'cancelled';
begin
    select t.* into live from fleet.task t where t.id = cancel.task_id;
    if not found then
        if exists (select from fleet.archive a where a.id = cancel.task_id)
           or exists (select from fleet.buried b where b.id = cancel.task_id) then
            return 'ended';
        end if;
        return null;
    end if;
    if live.state = 'running' or fleet.cancel_idle(array[cancel.task_id]) = 0 then
        said := 'requested';
        -- Claimed just now, or locked: leave the wish; the owner, or the next beat, carries it out.
        insert into fleet.cancellation (task_id, requested_by)
        values (cancel.task_id, coalesce(cancel.by, session_user)) on conflict do nothing;
        if not found then
            return said; -- a wish that stands already
        end if;
        perform pg_notify('fleet_cancel', cancel.task_id::text);
    end if;
    perform fleet.note('task.cancel', cancel.task_id::text, jsonb_build_object(
        'job', live.job, 'queue', live.queue, 'said', said), cancel.by);
    return said;
end
$$;

-- End those of the tasks that nobody runs. Returns how many.
create function fleet.cancel_idle(ids bigint[]) returns int
language sql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
    with gone as (
        delete from fleet.task t
         where t.id = any (array(
                   select w.id from fleet.task w
                    where w.id = any (ids) and w.state <> 'running' for update skip locked))
        returning t.*),
    kinds as (
        select k.job, k.step, fleet.keep_of(k.job, k.step) as keep
          from (select distinct g.job, g.step from gone g) k),
    kept as (
        insert into fleet.archive (keep_until, id, fence, enqueued_at, ready_at, finished_at, visit,
            attempt, failures, crashes, losses, releases, priority, outcome, queue, job, step, key,
            trace, input, error)
        select fleet.now() + k.keep, g.id, g.fence, g.enqueued_at, g.ready_at,
               fleet.now(), g.visit, 1 + g.prior + g.failures + g.crashes, g.failures, g.crashes,
               g.losses, g.releases, g.priority, 'cancelled', g.queue, g.job, g.step, g.key, g.trace,
               g.input, g.error
          from gone g join kinds k on k.job = g.job and k.step = g.step)
    select count(*)::int from gone
$$;

-- Wishes for tasks that are no longer running (released, retried, ended meanwhile): part of the beat.
create function fleet.cancel_leftovers() returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    ended int;
begin
    if not exists (select from fleet.cancellation) then
        return 0;
    end if;
    ended := fleet.cancel_idle(array(select c.task_id from fleet.cancellation c));
    delete from fleet.cancellation c
     where (select t.id from fleet.task t where t.id = c.task_id) is null;
    return ended;
end
$$;

-- Bring a buried task back, at the step where it failed or at another one, with its input or another.
-- The fence goes on growing, so that nothing written by its earlier life can count.
create function fleet.revive(
    task_id bigint, step text default null, input jsonb default null, by text default null)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    back fleet.task;
begin
    back := fleet.bring_back(revive.task_id, revive.step, revive.input);
    perform fleet.note('task.revive', back.id::text, jsonb_build_object(
        'job', back.job, 'queue', back.queue, 'step', revive.step,
        'input', case when revive.input is not null then 'new' end), revive.by);
    return back.id;
end
$$;

-- The revival itself, without a line in the log.
create function fleet.bring_back(task_id bigint, step text, input jsonb) returns fleet.task
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    dead   fleet.buried;
    back   fleet.task;
    holder bigint;
    steps  text[];
begin
    delete from fleet.buried b where b.id = bring_back.task_id returning b.* into dead;
    if not found then
        if exists (select from fleet.task t where t.id = bring_back.task_id) then
            raise exception 'fleet.revive: task % is live', bring_back.task_id
                using errcode = '55000', hint = 'Only a buried task can be revived.';
        end if;
        raise exception 'fleet.revive: no buried task %', bring_back.task_id
            using errcode = 'P0002', hint = 'fleet task list --state buried shows what there is.';
    end if;
    if bring_back.step is not null then
        perform fleet.check_step('fleet.revive', bring_back.step);
        -- Of any definition: during a deploy a step may be new, or about to go.
        select array_agg(distinct s.step ->> 'name') into steps
          from fleet.job j, jsonb_array_elements(j.definition -> 'steps') s (step)
         where j.name = dead.job;
        if bring_back.step <> all (steps) then
            raise exception 'fleet.revive: task %: its job % has no step %', dead.id, dead.job,
                            quote_literal(bring_back.step)
                using errcode = '22023', hint = 'It has ' || array_to_string(steps, ', ');
        end if;
    end if;

    insert into fleet.task (id, fence, enqueued_at, visit, prior, priority, rank, state, pos, due_at,
                            queue, job, step, key, waiting_for, unique_slot, unique_scope, trace, input)
    overriding system value
    values (dead.id, dead.fence, dead.enqueued_at,
            dead.visit + case when coalesce(bring_back.step, dead.step) = dead.step then 0 else 1 end,
            -- Not the sum of what was counted: a Fatal counts as no failure, and was an attempt.
            case when coalesce(bring_back.step, dead.step) = dead.step then dead.attempt else 0 end,
            dead.priority, -2 * dead.priority + 1,
            case when dead.key is null then 'ready' else 'waiting' end,
            case when dead.key is null then nextval('fleet.position') end,
            case when dead.key is not null then fleet.now() end,
            dead.queue, dead.job, coalesce(bring_back.step, dead.step), dead.key, dead.key,
            dead.unique_slot, dead.unique_scope, dead.trace, coalesce(bring_back.input, dead.input))
    on conflict do nothing
    returning * into back;
    if not found then
        select t.id into holder from fleet.task t
         where t.job = dead.job and t.unique_slot = dead.unique_slot;
        raise exception 'fleet.revive: task % cannot come back, its unique slot % is held by task %',
                        dead.id, quote_literal(dead.unique_slot), holder
            using errcode = '23505',
                  hint = 'Let that task end or cancel it first; nothing was changed.';
    end if;

    -- A wish to cancel it was for its life before.
    delete from fleet.cancellation c where c.task_id = dead.id;
    -- Its last attempt was columns of the buried row, and goes to the history with it.
    insert into fleet.attempt (keep_until, task_id, fence, started_at, ended_at, visit, attempt,
                               queue, job, step, outcome, worker, error)
    values (fleet.now() + fleet.keep_of(dead.job, dead.step), dead.id, dead.fence, coalesce(dead.started_at, dead.buried_at),
            dead.buried_at, dead.visit, dead.attempt, dead.queue, dead.job, dead.step,
            case when dead.reason = 'poison' then 'crashed' else 'failed' end, dead.worker, dead.error);
    perform fleet.wake(array[dead.queue]);
    return back;
end
$$;

-- What waits for, or is in, the hands of workers. With no replica left nobody else would notice what
-- has become due, so that counts too.
create function fleet.backlog(queue text) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set jit = off
as $$
    -- A count an index: one condition over all of them would read the whole table.
    select (select count(*) from fleet.task t where t.queue = backlog.queue and t.pos is not null)
         + (select count(*) from fleet.task t
             where t.due_at <= fleet.now() and t.waiting_for is null and t.queue = backlog.queue)
         + (select count(*) from fleet.task t
             where t.due_at <= fleet.now() and t.waiting_for is not null and t.queue = backlog.queue)
$$;

create function fleet.schema_version() returns int
language sql stable security definer set search_path = pg_catalog, pg_temp
as 'select coalesce(max(version), 0) from fleet.migration';
