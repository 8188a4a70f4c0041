-- Limits: how many of a queue's, or a job's, tasks run at once in the whole fleet, and how many start in
-- a time. The numbers come with the claim, from the configuration of whoever claims.
--
-- The row of the limit is locked first and the running tasks are counted second, in a statement of its own,
-- which has a new snapshot: whoever had the lock before has committed, so what it claimed is seen. (Counted
-- in the statement that took the lock, with its older snapshot: 20 ran under a limit of 10, tried.)
-- Nothing is decremented anywhere, so nothing can be forgotten: a task that ends, or lets go, is no
-- longer counted because its row says so.

create table fleet.gate (
    kind      text not null check (kind in ('queue', 'job')),
    name      text not null,
    tokens    float8,                              -- null: full, whatever its size
    filled_at timestamptz not null default fleet.now(),
    primary key (kind, name)
) with (fillfactor = 50);

-- Lock a gate; return how many may pass it now, and in how many seconds the next one may. pace: tokens a
-- second; burst: how many it holds at the most. Null: no limit of that kind.
create function fleet.enter(
    the_kind text, the_name text, most int, pace float8, burst float8,
    out room int, out wait float8)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set jit = off
as $$
declare
    gate   fleet.gate;
    filled float8;
begin
    loop
        select g.* into gate from fleet.gate g
         where g.kind = the_kind and g.name = the_name for update;
        exit when found;
        insert into fleet.gate (kind, name) values (the_kind, the_name) on conflict do nothing;
    end loop;
    room := 2147483647;
    if most is not null then
        if the_kind = 'queue' then
            select most - count(*) into room from fleet.task t where t.queue = the_name and t.counted;
        else
            select most - count(*) into room from fleet.task t where t.job = the_name and t.counted;
        end if;
    end if;
    if pace is not null then
        -- Not backwards, since a statement that waited for this lock began before the one that had it;
        -- but a clock that was set back, or a standby's, must not stop the bucket until it has caught up.
        filled := least(burst, coalesce(
            gate.tokens + pace * greatest(extract(epoch from fleet.now() - gate.filled_at), 0), burst));
        update fleet.gate g
           set tokens = filled,
               filled_at = case when gate.filled_at > fleet.now() + interval '5 s' then fleet.now()
                                else greatest(gate.filled_at, fleet.now()) end
         where g.kind = the_kind and g.name = the_name;
        room := least(room, floor(filled + 1e-9)::int);
        if filled + 1e-9 < 1 then
            wait := (1 - filled) / pace;
        end if;
    end if;
end
$$;

-- The claim of a queue, or of a job in it, that has limits. See fleet/store/claims.py for the claim itself.
-- In every row: room, how many might have been claimed, and wait, in how many seconds the next token
-- is there; a row without a task where none was.
create function fleet.claim_limited(
    the_owner bigint, the_queue text, wanted int, ranks smallint[], places bigint[], belows smallint[],
    known text[],
    queue_most int, queue_pace float8, queue_burst float8,
    the_job text, job_most int, job_pace float8, job_burst float8)
returns table (
    room int, wait float8, id bigint, fence bigint, queue text, job text, step text, visit int, input text,
    priority smallint, failures int, crashes int, losses int, releases int, prior int, alone boolean,
    key text, trace text, enqueued_at timestamptz, ready_at timestamptz, rank smallint, pos bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off
    set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    entered record;
    taken   int := 0;
begin
    room := wanted;
    -- Always the queue's gate before the job's.
    if queue_most is not null or queue_pace is not null then
        select * into entered from fleet.enter('queue', the_queue, queue_most, queue_pace, queue_burst);
        room := least(room, entered.room);
        wait := entered.wait;
    end if;
    if job_most is not null or job_pace is not null then
        select * into entered from fleet.enter('job', the_job, job_most, job_pace, job_burst);
        room := least(room, entered.room);
        wait := greatest(wait, entered.wait);
    end if;
    room := greatest(room, 0);
    if room > 0 then
        return query
            update fleet.task t
               set state = 'running', fence = t.fence + 1, owner = the_owner, claimed_at = fleet.now(),
                   counted = true,
                   unique_slot = case when t.unique_scope = 'while_waiting' then null
                                      else t.unique_slot end
             where not exists (select from fleet.owner o where o.id = the_owner and o.state = 'taken')
               and t.id = any (array(
                   select c.id
                     from unnest(ranks, places, belows) as span (rank, pos, below)
                    cross join lateral (
                          select w.id
                            from fleet.task w
                           where w.queue = the_queue and w.pos is not null
                             and (w.rank, w.pos) > (span.rank, span.pos) and w.rank < span.below
                             and w.state = 'ready' and (w.job || '/' || w.step) = any (known)
                           order by w.rank, w.pos
                           limit claim_limited.room
                             for update skip locked) c
                    limit claim_limited.room))
            returning claim_limited.room, claim_limited.wait, t.id, t.fence::bigint, t.queue::text,
                      t.job::text, t.step, t.visit::int, t.input::text, t.priority, t.failures::int,
                      t.crashes::int, t.losses::int, t.releases::int, t.prior::int, t.alone, t.key, t.trace,
                      t.enqueued_at::timestamptz, t.ready_at::timestamptz, t.rank, t.pos;
        get diagnostics taken = row_count;
        if queue_pace is not null then
            update fleet.gate g set tokens = g.tokens - taken
             where g.kind = 'queue' and g.name = the_queue;
        end if;
        if job_pace is not null then
            update fleet.gate g set tokens = g.tokens - taken
             where g.kind = 'job' and g.name = the_job;
        end if;
    end if;
    if taken = 0 then
        id := null;
        return next;
    end if;
end
$$;

-- What ran before its queue or job had a limit counts from now on.
create function fleet.count_in(the_owner bigint, ids bigint[]) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set jit = off
as $$
    update fleet.task t set counted = true
     where t.id = any (array(
               select w.id from fleet.task w
                where w.id = any (ids) and w.owner = the_owner and not w.counted
                  for update skip locked))
$$;

revoke execute on all functions in schema fleet from public;
