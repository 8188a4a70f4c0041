-- What a supervisor says and hears once a beat, and how it is told to stop.

alter table fleet.owner
    add column lease    float8 not null default 15,  -- seconds its counter may stand still
    add column state    text not null default 'running',
    add column workers  jsonb not null default '[]', -- what each of its processes does now
    add column serves   text[] not null default '{}';

-- Make what is due ready, the earliest first; a keyed task that does not hold its key starts to wait
-- for it instead. Returns the queues in which something became ready.
create function fleet.promote(at_most int default 1000) returns table (queue text, n bigint)
language sql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
    with due as materialized (
        select d.id, nextval('fleet.position') as pos
          from (select w.id from fleet.task w
                 where w.due_at <= fleet.now() and w.waiting_for is null
                 order by w.due_at
                 limit at_most
                   for update skip locked) d),
    promoted as (
        update fleet.task t
           set state = case when t.key is null or t.granted then 'ready' else 'waiting' end,
               pos = case when t.key is null or t.granted then due.pos end,
               waiting_for = case when t.key is null or t.granted then null else t.key end,
               due_at = case when t.key is null or t.granted then null else t.due_at end,
               rank = -2 * t.priority + 1,
               ready_at = t.due_at
          from due
         where t.id = any (array(select id from due)) and t.id = due.id
        returning t.queue, t.state)
    select p.queue::text, count(*) filter (where p.state = 'ready') from promoted p group by 1
$$;

-- Commands to supervisors. Each acknowledges. Whoever starts later is not meant, which is told by
-- numbers and by no clock; the row goes with the first command a day later.
create table fleet.shutdown (
    id           bigint generated always as identity primary key,
    host         text,            -- null: every host
    queue        text,            -- null: the whole supervisor; else only the workers of this queue
    last_owner   bigint not null, -- the last one that was there: those after it are not meant
    requested_at timestamptz not null default fleet.now(),
    requested_by text not null default session_user
);
create table fleet.shutdown_ack (
    shutdown bigint not null references fleet.shutdown on delete cascade,
    owner    bigint not null,
    state    text not null check (state in ('draining', 'down')),
    at       timestamptz not null default fleet.now(),
    primary key (shutdown, owner)
);

-- What beats every file: a pause, or a setting of a queue, each for as long as it says.
create table fleet.override (
    queue      fleet.name,
    key        text,                 -- 'paused', or a setting's
    value      jsonb not null,
    until      timestamptz,          -- null: until it is taken back
    changed_at timestamptz not null default fleet.now(),
    changed_by text not null default session_user,
    primary key (queue, key)
);

-- The beat: one statement a host. It renews the lease first, and nothing that follows can cost it: locks
-- are given up quickly, and an error, a statement_timeout included, is told instead of raised. Null:
-- this owner has been taken over and must stop.
--
-- the_looks are the queues to look for ready work in, from the start of their lines: behind many dead
-- rows that takes long, so the caller says how often.
create function fleet.beat(
    the_owner bigint, the_state text, the_workers jsonb, the_queues text[], the_looks text[])
returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    counter bigint;
    work    jsonb := '{}';
    news    jsonb;
begin
    update fleet.owner o
       set beat = o.beat + 1, beaten_at = fleet.now(), state = the_state,
           workers = coalesce(the_workers, o.workers), serves = coalesce(the_queues, o.serves)
     where o.id = the_owner and o.state <> 'taken'
    returning o.beat into counter;
    if not found then
        return null;
    end if;

    perform set_config('lock_timeout', '200ms', true);
    begin
        if exists (select from fleet.task t where t.due_at <= fleet.now() and t.waiting_for is null) then
            perform fleet.wake(array(select p.queue from fleet.promote() p where p.n > 0));
        end if;
        if exists (select from fleet.task t where t.due_at <= fleet.now() and t.waiting_for is not null)
           or exists (select from fleet.key k where k.holder is null) then
            perform fleet.grant_keys();
        end if;
        perform fleet.cancel_leftovers();
        work := jsonb_build_object(
            'ready', (select coalesce(jsonb_agg(q), '[]') from unnest(the_looks) q
                       -- LIMIT keeps it a look for each queue: a join would read the whole line.
                       where (select true from fleet.task t
                               where t.queue = q and t.pos is not null and t.state = 'ready'
                               limit 1)),
            'due_in', extract(epoch from least(
                          (select t.due_at from fleet.task t
                            where t.due_at is not null and t.waiting_for is null
                            order by t.due_at limit 1),
                          (select s.next_at from fleet.schedule s
                            where s.next_at > fleet.now() and not s.paused
                            order by s.next_at limit 1)) - fleet.now())::float8,
            'cancel', (select coalesce(jsonb_agg(c.task_id), '[]')
                         from fleet.cancellation c
                        where (select t.owner from fleet.task t where t.id = c.task_id)
                              = the_owner));
    exception
        when lock_not_available then
            work := jsonb_build_object('locked', true);
        when query_canceled or others then
            work := jsonb_build_object('trouble', format('%s (%s)', sqlerrm, sqlstate));
    end;
    begin
        news := jsonb_build_object(
            'ticks', fleet.due_schedules(),
            'owners', (select coalesce(jsonb_object_agg(o.id, jsonb_build_array(o.beat, o.lease)), '{}')
                         from fleet.owner o where o.id <> the_owner),
            'shutdown', (select coalesce(jsonb_agg(jsonb_build_object(
                                    'id', s.id, 'host', s.host, 'queue', s.queue,
                                    'last_owner', s.last_owner)), '[]')
                           from fleet.shutdown s
                          where not exists (select from fleet.shutdown_ack a
                                             where a.shutdown = s.id and a.owner = the_owner
                                               and a.state = 'down')),
            'queues', (select coalesce(jsonb_object_agg(q.queue, q.said), '{}')
                         from (select o.queue, jsonb_object_agg(o.key, o.value) as said
                                 from fleet.override o
                                where o.until is null or o.until > fleet.now()
                                group by o.queue) q));
    exception
        when lock_not_available then
            news := jsonb_build_object('locked', true);
        when query_canceled or others then
            news := jsonb_build_object('trouble', format('%s (%s)', sqlerrm, sqlstate));
    end;
    return work || news || jsonb_build_object(
        'beat', counter, 'now', extract(epoch from fleet.now())::float8);
end
$$;

-- Take back what was claimed and never started: free of charge, and no line in the history.
create function fleet.unclaim(the_owner bigint, ids bigint[], fences bigint[]) returns bigint[]
language sql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
    with back as (
        update fleet.task t
           set state = 'ready', owner = null, claimed_at = null, counted = false,
               pos = nextval('fleet.position'),
               rank = -2 * t.priority
         where t.id = any (array(
                   select w.id from fleet.task w
                     join unnest(ids, fences) c (id, fence) on w.id = c.id and w.fence = c.fence
                    where w.id = any (ids) and w.owner = the_owner
                      for update of w skip locked))
        returning t.id, t.queue::text as queue),
    woken as (
        select fleet.wake(array(select distinct b.queue from back b)))
    select coalesce(array_agg(b.id), '{}') from back b, woken
$$;

revoke execute on all functions in schema fleet from public;
