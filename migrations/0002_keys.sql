-- Waking idle supervisors, and keys: so many tasks at a time as the key's job says, one unless it says
-- otherwise, strictly in the order of their ids.
--
-- Enqueue inserts a keyed task as waiting and touches no row of fleet.key, so that no application's
-- open transaction can hold up a host. Keys change hands in two places only, both short:
--   fleet.grant_keys()  looks at what is freshly waiting, and gives free keys away
--   fleet.hand_over()   gives the key of a task that ends to the next one, in the same statement
-- Both lock the key's row first and look second, with a new snapshot (each statement of a volatile
-- function takes one): whatever was committed before the lock was theirs is seen. A task that
-- waits without due_at is therefore always behind an existing row of fleet.key, and found when that
-- row moves on.
--
-- Locks are taken in the order: running task, key, waiting task. grant_keys never waits for a key
-- (SKIP LOCKED: the holder's end will hand it over anyway), so there is no cycle.

-- A supervisor with free slots and nothing to do stands here. A commit with a pending NOTIFY takes a
-- lock of the whole database (8 inserters: 21.4k/s without, 7.4k/s with), so nobody notifies unless
-- somebody listens for it. Unlogged: after a crash of the server everyone looks anyway.
create unlogged table fleet.armed (
    queue text not null,
    owner bigint not null,
    primary key (queue, owner)
);

-- PostgreSQL drops a repeated (channel, payload) within a transaction: one a queue at the most.
create function fleet.wake(queues text[]) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    select pg_notify('fleet_wake', a.queue)
      from (select distinct queue from fleet.armed where queue = any (queues)) a
$$;

create table fleet.key (
    queue  text not null,
    key    text not null,
    holder bigint,          -- one who holds it; null: there may be room, and grant_keys() comes
    primary key (queue, key)
) with (fillfactor = 70);
create index key_free on fleet.key (queue, key) where holder is null;

-- How many may hold a key of this job at a time; 1 unless its job says otherwise (key_limit).
create function fleet.key_limit_of(job text) returns int
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select j.key_limit from fleet.job j
     where j.name = key_limit_of.job
     order by j.last_seen > fleet.now() - interval '1 minute' desc, j.first_seen desc, j.fingerprint
     limit 1
$$;

-- Give a key whose row the caller has locked to those who wait for it, in the order of their ids, while
-- fewer hold it than the next one's job allows. Returns how many it was given to.
create function fleet.give_key(the_queue text, the_key text) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    heir    record;
    most    int;
    blocked boolean := false;
    given   int := 0;
    one     bigint;
begin
    -- A caller's older snapshot does not show who has come to wait, or was given the key, since:
    -- leave it to grant_keys(), which sees them.
    if current_setting('transaction_isolation') <> 'read committed' then
        update fleet.key k set holder = null where k.queue = the_queue and k.key = the_key;
        return 0;
    end if;
    loop
        select t.id, t.job into heir
          from fleet.task t
         where t.queue = the_queue and t.waiting_for = the_key
         order by t.id
         limit 1;
        exit when not found;
        most := coalesce(fleet.key_limit_of(heir.job), 1);
        exit when (select count(*)
                     from (select from fleet.task t
                            where t.queue = the_queue and t.key = the_key and t.granted
                            limit most) h) >= most;

        -- Locked by somebody (a cancel in an open transaction): never wait, never pass the place on
        -- to the second; leave the key free, and grant_keys() tries again.
        perform from fleet.task t where t.id = heir.id and t.waiting_for = the_key
            for update skip locked;
        if not found then
            blocked := true;
            exit;
        end if;
        update fleet.task t
           set state = 'ready', granted = true, waiting_for = null, due_at = null,
               pos = nextval('fleet.position'), rank = -2 * t.priority, ready_at = fleet.now()
         where t.id = heir.id;
        given := given + 1;
        one := heir.id;
        exit when most = 1;
    end loop;

    if given > 0 then
        perform fleet.wake(array[the_queue]);
    end if;
    if blocked then
        one := null;
    elsif one is null then
        select t.id into one from fleet.task t
         where t.queue = the_queue and t.key = the_key and t.granted limit 1;
        if not found then
            delete from fleet.key k where k.queue = the_queue and k.key = the_key;
            return given;
        end if;
    end if;
    update fleet.key k set holder = one
     where k.queue = the_queue and k.key = the_key and k.holder is distinct from one;
    return given;
end
$$;

-- Look at what has come to wait since the last time. Returns how many keys were given away.
create function fleet.grant_keys(at_most int default 1000) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    fresh  bigint[];
    queues text[];
    keys   text[];
    locked bigint[] := '{}';
    busy_q text[] := '{}';   -- keys that somebody has locked
    busy_k text[] := '{}';
    mine_k text[];
    seen   record;
    given  int := 0;
begin
    -- Again where the first so many were of keys that somebody has locked: behind a transaction that stays
    -- open for hours, with a thousand tasks of its key, the other keys go on.
    for round in 1 .. 20 loop
        select array_agg(f.id) into fresh
          from (select t.id from fleet.task t
                 where t.due_at <= fleet.now() and t.waiting_for is not null
                   and not exists (select from unnest(busy_q, busy_k) b (queue, key)
                                    where b.queue = t.queue and b.key = t.waiting_for)
                 order by t.due_at limit at_most) f;
        select array_agg(c.queue), array_agg(c.key) into queues, keys
          from (select t.queue::text, t.waiting_for as key from fleet.task t
                 where t.id = any (fresh) and t.waiting_for is not null
                union
                (select k.queue, k.key from fleet.key k where k.holder is null and round = 1 limit at_most)
                order by 1, 2) c;
        exit when queues is null;
        mine_k := '{}';

        insert into fleet.key (queue, key)
        select c.queue, c.key from unnest(queues, keys) c (queue, key)
         -- Not left to ON CONFLICT, which waits for whoever is about to change that row: an open
         -- transaction that has ended a key's holder would hold up every beat of the fleet.
         where not exists (select from fleet.key k where k.queue = c.queue and k.key = c.key)
         order by 1, 2
            on conflict do nothing;

        for seen in
            select k.queue, k.key
              from fleet.key k
              join unnest(queues, keys) c (queue, key) on k.queue = c.queue and k.key = c.key
             order by 1, 2
               for update of k skip locked
        loop
            mine_k := mine_k || (seen.queue || ' ' || seen.key);
            given := given + fleet.give_key(seen.queue, seen.key);
            locked := locked || array(
                select t.id from fleet.task t
                 where t.id = any (fresh) and t.queue = seen.queue and t.waiting_for = seen.key);
        end loop;
        exit when coalesce(cardinality(fresh), 0) < at_most or cardinality(mine_k) = cardinality(keys);
        select busy_q || array_agg(c.queue), busy_k || array_agg(c.key) into busy_q, busy_k
          from unnest(queues, keys) c (queue, key)
         where (c.queue || ' ' || c.key) <> all (mine_k);
    end loop;

    -- The others stand behind the row of their key, which is locked and there: no second look.
    update fleet.task t set due_at = null
     where t.id = any (array(
               select w.id from fleet.task w
                where w.id = any (locked) and w.waiting_for is not null
                  for update skip locked));
    return given;
end
$$;

-- The key of a task that ends, or that gives its key up, goes on to the next: whoever ends it, in
-- whatever statement, an operator's DELETE included.
create function fleet.hand_over() returns trigger
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
begin
    if coalesce(fleet.key_limit_of(old.job), 1) = 1 then
        perform from fleet.key k where k.queue = old.queue and k.key = old.key for update;
    else
        -- Another holder's end may have it locked, in a transaction that stays open, or in a batch that
        -- waits for one of ours: never wait. Who stands in line is looked at again by grant_keys().
        perform from fleet.key k where k.queue = old.queue and k.key = old.key for update skip locked;
        if not found then
            update fleet.task t set due_at = fleet.now()
             where t.id = any (array(
                       select w.id from fleet.task w
                        where w.queue = old.queue and w.waiting_for = old.key and w.due_at is null
                        order by w.id limit 100
                          for update skip locked));
            return null;
        end if;
    end if;
    if found then
        perform fleet.give_key(old.queue, old.key);
    end if;
    return null;
end
$$;

create trigger task_hands_over_its_key after delete on fleet.task
    for each row when (old.granted) execute function fleet.hand_over();
create trigger task_gives_up_its_key after update of granted on fleet.task
    for each row when (old.granted and not new.granted) execute function fleet.hand_over();

-- What a unique name needs besides its slot in the task's row.

-- Names that are unique for a period, from the enqueue on and whatever becomes of the task: its row may be
-- gone by then. Hosts never lock a row of this table, so nobody's open transaction holds one of them up;
-- fleet.maintain drops what is over.
create table fleet.slot (
    job     text not null,
    name    text not null,
    task_id bigint not null,
    until   timestamptz not null,
    primary key (job, name)
);
create index slot_until on fleet.slot (until);

-- Take a name for a period; null: it is ours. Otherwise the task that has it.
create function fleet.take_slot(the_job text, the_name text, period interval) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set jit = off
as $$
declare
    soon   timestamptz := fleet.now();
    holder bigint;
begin
    loop
        -- Looked at first: ON CONFLICT DO UPDATE locks the row whatever its condition says, and repeats
        -- would wait for one another's transactions.
        select s.task_id into holder from fleet.slot s
         where s.job = the_job and s.name = the_name and s.until > soon;
        exit when found;
        insert into fleet.slot as s (job, name, task_id, until)
        values (the_job, the_name, 0, soon + period)
            on conflict (job, name) do update set task_id = 0, until = excluded.until
         where s.until <= soon;
        exit when found;
    end loop;
    return holder;
end
$$;

-- Give a task that nobody has ever claimed another input, and, if due says so, defer it anew. False: it has been
-- claimed, or is gone, and nothing was changed. Waits for a claim of this moment, or for another repeat's
-- transaction; nobody waits for ours: whoever claims, promotes, grants or cancels skips locked rows. A key that
-- was granted stays granted, since giving it up would lock its row until our commit.
create function fleet.repeat_with(
    the_task bigint, the_input jsonb, the_step text, due timestamptz)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    its_queue text;
begin
    update fleet.task t
       set input = coalesce(the_input, 'null'), step = the_step,
           state = case when due is null then t.state else 'deferred' end,
           pos = case when due is null then t.pos end,
           waiting_for = case when due is null then t.waiting_for end,
           due_at = coalesce(due, t.due_at),
           ready_at = coalesce(due, t.ready_at)
     where t.id = the_task and t.fence = 0
    returning t.queue into its_queue;
    if not found then
        return false;
    end if;
    -- It may be due sooner than it was, or ready and passed over while we had it locked.
    perform fleet.wake(array[its_queue]);
    return true;
end
$$;
