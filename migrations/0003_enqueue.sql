-- The ways in. All of them check what they are given, run as the owner of the schema, and need
-- nothing but EXECUTE: a role that may enqueue sees no table.
--
-- The functions that check say what is wrong; entering one takes 5 µs, since each sets its search_path.
-- So those who enqueue ask one cheap question first, and call them only where its answer is not a plain
-- yes; and they look whether anybody is armed before they call fleet.wake. Measured with
-- enqueue_one on PostgreSQL 18, no wait for the disk, two CPUs that others used too: in the server 54 to
-- 64 instead of 75 to 81 µs; a round trip, fastest tenth, mostly 211 to 226 instead of 241 to 261 µs.

-- Refuse what a task's row must not say. One place, for SQL and Python alike.
create function fleet.check_options(
    priority int, delay interval, at timestamptz, key text, unique_key text, unique_scope text)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if priority not between -10000 and 10000 then
        raise exception 'fleet.enqueue: priority % is out of bounds', priority
            using errcode = '22023', hint = 'Give -10000 to 10000; higher runs first.';
    end if;
    if delay is not null and at is not null then
        raise exception 'fleet.enqueue: both delay and at are given'
            using errcode = '22023', hint = 'Give a delay from now, or a moment, not both.';
    end if;
    if delay < interval '0' then
        raise exception 'fleet.enqueue: delay % is negative', delay
            using errcode = '22023', hint = 'Give an interval of zero or more, like ''90 s''.';
    end if;
    -- Compared as numbers: adding a huge interval to a date would fail with a worse message.
    if extract(epoch from delay) > 251000000000
       or at >= '10000-01-01' or at = '-infinity' then
        raise exception 'fleet.enqueue: the task would be due past the year 9999'
            using errcode = '22023', hint = 'Give an earlier moment.';
    end if;
    if char_length(key) not between 1 and 255 then
        raise exception 'fleet.enqueue: key must have 1 to 255 characters' using errcode = '22023';
    end if;
    if char_length(unique_key) not between 1 and 255 then
        raise exception 'fleet.enqueue: unique_key must have 1 to 255 characters'
            using errcode = '22023';
    end if;
    if unique_scope not in ('while_waiting', 'while_live') then
        raise exception 'fleet.enqueue: unique_scope % is unknown', unique_scope
            using errcode = '22023', hint = 'Give while_waiting or while_live.';
    end if;
end
$$;

create function fleet.check_unique(
    unique_key text, unique_scope text, unique_for interval, on_repeat text,
    delay interval, at timestamptz)
returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
begin
    if on_repeat is null or on_repeat not in ('keep', 'replace', 'push_back') then
        raise exception 'fleet.enqueue: on_repeat % is unknown', quote_nullable(on_repeat)
            using errcode = '22023', hint = 'Give keep, replace or push_back.';
    end if;
    if unique_key is null and (unique_for is not null or on_repeat <> 'keep') then
        raise exception 'fleet.enqueue: % without unique_key',
                        case when unique_for is null then 'on_repeat' else 'unique_for' end
            using errcode = '22023', hint = 'Give unique_key too: a repeat is one of the same name.';
    end if;
    if unique_for <= interval '0' then
        raise exception 'fleet.enqueue: unique_for % is not positive', unique_for
            using errcode = '22023', hint = 'Give an interval, like ''1 min''.';
    end if;
    if extract(epoch from unique_for) > 251000000000 then
        raise exception 'fleet.enqueue: unique_for would end past the year 9999'
            using errcode = '22023', hint = 'Give a shorter interval.';
    end if;
    if unique_for is not null and unique_scope = 'while_waiting' then
        raise exception 'fleet.enqueue: both unique_scope and unique_for are given'
            using errcode = '22023', hint = 'Give a scope, or a period, not both.';
    end if;
    if on_repeat = 'push_back' and delay is null and at is null then
        raise exception 'fleet.enqueue: on_repeat push_back without delay or at'
            using errcode = '22023', hint = 'Give the delay that counts anew with every repeat.';
    end if;
end
$$;

create function fleet.check_name(kind text, name text, caller text default 'fleet.enqueue')
returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if name is null or octet_length(name) not between 1 and 63
       or name !~ '^[a-z][a-z0-9_.-]*$' then
        raise exception '%: % name % is not allowed', caller, kind, quote_nullable(left(name, 80))
            using errcode = '22023',
                  hint = 'Give 1 to 63 characters: a lower-case letter, then a-z, 0-9, _, - or dots.';
    end if;
end
$$;

create function fleet.check_step(caller text, name text) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if name is null
       or name <> '' and (octet_length(name) > 63 or name !~ '^[A-Za-z_][A-Za-z0-9_-]*$') then
        raise exception '%: step name % is not allowed', caller, quote_nullable(left(name, 80))
            using errcode = '22023',
                  hint = 'Give 1 to 63 characters: a letter or _, then a-z, A-Z, 0-9, _ or -.';
    end if;
end
$$;

-- The same measure as the domain's, in better words; those who enqueue ask only where the input is
-- large. What only its numbers make large is left to the domain.
create function fleet.check_payload(input jsonb) returns void
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if octet_length(input::text) > 1572864 then
        raise exception 'fleet.enqueue: the input is % bytes of JSON with spaces, the limit is 1572864',
                        octet_length(input::text)
            using errcode = '22023', hint = 'Store the data elsewhere and pass a reference to it.';
    end if;
end
$$;

-- The definition that counts: of those that live workers have, the one first seen last, so that a
-- rolling deploy moves forward once and does not flap.
create function fleet.definition_of(job text) returns setof fleet.job
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select j.* from fleet.job j
     where j.name = definition_of.job
     order by j.last_seen > fleet.now() - interval '1 minute' desc, j.first_seen desc, j.fingerprint
     limit 1
$$;

-- Many at once: what varies from task to task in arrays (input, key, trace), what many share once a
-- distinct combination (job … at), and which[i] says which one task i has; null: all have the first.
-- Returns the ids in the order of the inputs. The variables are assigned first because PostgreSQL
-- keeps arrays in variables unpacked: an element costs the same at any index.
create function fleet.enqueue_many(
    input text[], job text[], step text[], queue text[], priority int[],
    delay interval[], at timestamptz[], which int[], key text[], trace text[])
returns bigint[]
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    the_job      fleet.name[];
    the_queue    fleet.name[];
    the_step     text[] := step;
    the_priority smallint[];
    the_due      timestamptz[];
    soon         timestamptz := fleet.now();
    made         bigint[];
begin
    for i in 1 .. coalesce(cardinality(job), 0) loop
        if (job[i] ~ '^[a-z][a-z0-9_.-]*$' and octet_length(job[i]) <= 63
            and queue[i] ~ '^[a-z][a-z0-9_.-]*$' and octet_length(queue[i]) <= 63
            and step[i] ~ '^[A-Za-z_][A-Za-z0-9_-]*$' and octet_length(step[i]) <= 63
            and priority[i] between -10000 and 10000
            and delay[i] is null and at[i] is null) is not true then
            perform fleet.check_name('job', job[i]);
            perform fleet.check_name('queue', queue[i]);
            perform fleet.check_step('fleet.enqueue', step[i]);
            perform fleet.check_options(priority[i], delay[i], at[i], null, null, 'while_live');
        end if;
        the_due[i] := nullif(greatest(coalesce(at[i], soon + delay[i], soon), soon), soon);
    end loop;
    if (select max(octet_length(i)) from unnest(input) i) > 1048576 then
        perform fleet.check_payload(i::jsonb) from unnest(input) i where octet_length(i) > 1048576;
    end if;
    the_job := job; the_queue := queue; the_priority := priority;

    with made as (
        insert into fleet.task (job, step, queue, priority, rank, state, pos, due_at, ready_at,
                                key, waiting_for, trace, input)
        select the_job[w], the_step[w], the_queue[w], the_priority[w], -2 * the_priority[w] + 1,
               case when the_due[w] is not null then 'deferred'
                    when i.key is not null then 'waiting' else 'ready' end,
               case when the_due[w] is null and i.key is null then nextval('fleet.position') end,
               case when the_due[w] is not null then the_due[w]
                    when i.key is not null then soon end,
               coalesce(the_due[w], soon),
               i.key, case when the_due[w] is null then i.key end, i.trace, i.input::jsonb
          from (select u.input, u.key, u.trace, coalesce(u.which, 1) as w
                  from unnest(input, which, key, trace)
                       with ordinality u (input, which, key, trace, n)
                 order by u.n) i
        returning id)
    select array_agg(m.id order by m.id) into made from made m;

    if exists (select from fleet.armed a where a.queue = any (enqueue_many.queue)) then
        perform fleet.wake(queue);
    end if;
    return coalesce(made, '{}');
end
$$;

-- One task, from whoever knows all about its job: nothing is looked up. created is false where
-- unique_key found a task that is there already; on_repeat says what becomes of that one.
create function fleet.enqueue_one(
    job text, input jsonb default 'null', queue text default null, step text default null,
    priority int default null, delay interval default null, at timestamptz default null,
    key text default null, unique_key text default null, unique_scope text default 'while_live',
    traceparent text default null, unique_for interval default null,
    on_repeat text default 'keep', out id bigint, out created boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    soon timestamptz := fleet.now();
    due  timestamptz;
begin
    priority := coalesce(priority, 0);
    if (job ~ '^[a-z][a-z0-9_.-]*$' and octet_length(job) <= 63
        and queue ~ '^[a-z][a-z0-9_.-]*$' and octet_length(queue) <= 63
        and step ~ '^[A-Za-z_][A-Za-z0-9_-]*$' and octet_length(step) <= 63
        and priority between -10000 and 10000 and delay is null and at is null
        and key is null and unique_key is null and unique_scope = 'while_live'
        and unique_for is null and on_repeat = 'keep') is not true then
        perform fleet.check_name('job', job);
        perform fleet.check_name('queue', queue);
        perform fleet.check_step('fleet.enqueue', step);
        perform fleet.check_options(priority, delay, at, key, unique_key, unique_scope);
        perform fleet.check_unique(unique_key, unique_scope, unique_for, on_repeat, delay, at);
    end if;
    if pg_column_size(input) > 500000 then
        perform fleet.check_payload(input);
    end if;
    if octet_length(traceparent) > 512 then
        raise exception 'fleet.enqueue: traceparent has % bytes', octet_length(traceparent)
            using errcode = '22023', hint = 'Give a W3C traceparent, of 55 characters, or leave it out.';
    end if;
    due := nullif(greatest(coalesce(at, soon + delay, soon), soon), soon);
    if unique_for is not null then
        id := fleet.take_slot(job, unique_key, unique_for);
        if id is not null then
            created := false;
            if on_repeat <> 'keep' then
                perform fleet.repeat_with(id, input, step, case when on_repeat = 'push_back' then due end);
            end if;
            return;
        end if;
    end if;

    loop
        insert into fleet.task as t (job, step, queue, priority, rank, state, pos, due_at, ready_at,
                                key, waiting_for, unique_slot, unique_scope, trace, input)
        values (enqueue_one.job, enqueue_one.step, enqueue_one.queue, enqueue_one.priority,
                -2 * enqueue_one.priority + 1,
                case when due is not null then 'deferred'
                     when enqueue_one.key is not null then 'waiting' else 'ready' end,
                case when due is null and enqueue_one.key is null then nextval('fleet.position') end,
                case when due is not null then due
                     when enqueue_one.key is not null then soon end,
                coalesce(due, soon), enqueue_one.key,
                case when due is null then enqueue_one.key end,
                case when enqueue_one.unique_for is null then enqueue_one.unique_key end,
                case when enqueue_one.unique_key is not null and enqueue_one.unique_for is null
                     then enqueue_one.unique_scope end,
                enqueue_one.traceparent, coalesce(enqueue_one.input, 'null'))
        on conflict do nothing
        returning t.id into id;
        created := found;
        if not created then
            select t.id into id from fleet.task t
             where t.job = enqueue_one.job and t.unique_slot = enqueue_one.unique_key;
            -- Gone between the two statements: the slot is free, so try again.
            continue when not found;
            if on_repeat <> 'keep' then
                exit when fleet.repeat_with(
                    id, input, step, case when on_repeat = 'push_back' then due end);
                -- Claimed or gone meanwhile: still a repeat only if the slot is. Asked in a statement of
                -- its own, whose snapshot shows the claim that was waited for.
                perform from fleet.task t
                  where t.job = enqueue_one.job and t.unique_slot = enqueue_one.unique_key;
                continue when not found;
            end if;
        end if;
        exit;
    end loop;
    if unique_for is not null then
        update fleet.slot s set task_id = enqueue_one.id
         where s.job = enqueue_one.job and s.name = enqueue_one.unique_key;
    end if;

    if created and exists (select from fleet.armed a where a.queue = enqueue_one.queue) then
        perform fleet.wake(array[queue]);
    end if;
end
$$;

-- One task by its job's name: what is not given is what the job was registered with.
create function fleet.enqueue_named(
    job text, input jsonb default 'null', queue text default null, step text default null,
    priority int default null, delay interval default null, at timestamptz default null,
    key text default null, unique_key text default null, unique_scope text default null,
    traceparent text default null, unique_for interval default null,
    on_repeat text default 'keep', out id bigint, out created boolean)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    known fleet.job;
begin
    if unique_for is not null and unique_scope is not null then
        raise exception 'fleet.enqueue: both unique_scope and unique_for are given'
            using errcode = '22023', hint = 'Give a scope, or a period, not both.';
    end if;
    select j.* into known from fleet.definition_of(job) j;
    if not found and queue is null then
        raise exception 'fleet.enqueue: no job % is registered', quote_literal(job)
            using errcode = '42704',
                  hint = 'Start a worker that has it, run fleet register, or give queue => too.';
    end if;
    if key is null and known.key_computed then
        raise exception 'fleet.enqueue: the key of job % is computed from its input, in Python',
                        quote_literal(job)
            using errcode = '22023',
                  hint = 'Give key => too: what its function would return for this input.';
    end if;
    select e.id, e.created into enqueue_named.id, enqueue_named.created
      from fleet.enqueue_one(job, input, coalesce(queue, known.queue), coalesce(step, known.step, ''),
                             coalesce(priority, known.priority), delay, at, coalesce(key, known.key),
                             unique_key, coalesce(unique_scope, 'while_live'), traceparent,
                             unique_for, on_repeat) e;
end
$$;

-- For any language: select fleet.enqueue('order-receipt', '{"order_id": 42}', delay => '1 min').
create function fleet.enqueue(
    job text, input jsonb default 'null', queue text default null, step text default null,
    priority int default null, delay interval default null, at timestamptz default null,
    key text default null, unique_key text default null, unique_scope text default null,
    traceparent text default null, unique_for interval default null, on_repeat text default 'keep')
returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    select e.id from fleet.enqueue_named(job, input, queue, step, priority, delay, at, key,
                                         unique_key, unique_scope, traceparent, unique_for,
                                         on_repeat) e
$$;

-- What a step enqueued, in the statement that writes its outcome: {"many": the arguments of
-- enqueue_many, "one": [the arguments of enqueue_one, …]}, either may be missing.
create function fleet.spawn(children jsonb) returns int
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    many  record;
    one   record;
    total int := 0;
begin
    if children ? 'many' then
        select * into many from jsonb_to_record(children -> 'many') as m (
            input text[], job text[], step text[], queue text[], priority int[],
            delay interval[], at timestamptz[], which int[], key text[], trace text[]);
        total := cardinality(fleet.enqueue_many(
            many.input, many.job, many.step, many.queue, many.priority,
            many.delay, many.at, many.which, many.key, many.trace));
    end if;
    for one in
        select * from jsonb_to_recordset(coalesce(children -> 'one', '[]')) as o (
            job text, input text, queue text, step text, priority int, delay interval,
            at timestamptz, key text, unique_key text, unique_scope text, traceparent text,
            unique_for interval, on_repeat text)
    loop
        perform fleet.enqueue_one(
            one.job, one.input::jsonb, one.queue, one.step, one.priority, one.delay, one.at,
            one.key, one.unique_key, one.unique_scope, one.traceparent, one.unique_for,
            coalesce(one.on_repeat, 'keep'));
        total := total + 1;
    end loop;
    return total;
end
$$;
