-- Schedules: a cron expression with a time zone that enqueues a job.
--
-- The calendar is Python's: a supervisor computes which ticks are due and which one follows. The clock, the
-- row's lock and the record of what has fired are the database's, and fleet.fire does it all in one
-- statement. Whoever dies before its commit has done nothing; whoever comes second finds next_at moved.

create sequence fleet.revision;

create table fleet.schedule (
    name        fleet.name primary key,
    cron        text not null,
    timezone    text not null,
    job         fleet.name not null,
    input       fleet.payload not null default 'null',
    key         text,
    missed      text not null check (missed in ('latest', 'skip', 'all')),
    origin      text not null check (origin in ('app', 'hand')),
    fingerprint text,                                  -- of the declared definition that counts
    paused      boolean not null default false,
    revision    bigint not null default nextval('fleet.revision'), -- another one: what was computed is void
    since       timestamptz not null default fleet.now(), -- the first tick is the first one after it
    next_at     timestamptz,                           -- null: a supervisor is to compute it
    last_tick   timestamptz,
    last_task   bigint,
    error       text,                                  -- why it could not fire; it is tried at every beat
    created_at  timestamptz not null default fleet.now(),
    created_by  text not null default session_user
);
create index schedule_next on fleet.schedule (next_at) where not paused;

-- What has fired: a row a tick, for ever one task. No reference to the schedule, which may be removed.
create table fleet.tick (
    schedule fleet.name not null,
    tick     timestamptz not null,
    task     bigint not null,
    fired_at timestamptz not null default fleet.now(),
    fired_by text,                                     -- a person who fired it by hand
    primary key (schedule, tick)
);
create index tick_fired on fleet.tick (fired_at);

-- What applications declare, a row a definition: two of one name live together during a rolling deploy,
-- and as with jobs the one first seen last counts, so that nothing flaps.
create table fleet.declared (
    name        fleet.name not null,
    fingerprint text not null,
    cron        text not null,
    timezone    text not null,
    job         fleet.name not null,
    input       fleet.payload not null,
    key         text,
    missed      text not null,
    first_seen  timestamptz not null default fleet.now(),
    last_seen   timestamptz not null default fleet.now(),
    primary key (name, fingerprint)
);

-- ── what a schedule may say ──────────────────────────────────────────────────────────────────────

-- The values of one field as cronsim reads it; null: it cannot be read. -1: the last day of the month, -2:
-- the last weekday of the month, 100 × n + d: the nth d of the month, 900 + d: the last d of the month.
create function fleet.cron_field(field text, spec text) returns int[]
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
declare
    lowest  int := case when field in ('day', 'month') then 1 else 0 end;
    highest int := case field when 'hour' then 23 when 'day' then 31 when 'month' then 12
                              when 'weekday' then 7 else 59 end;
    names   text[] := case field
        when 'month' then '{JAN,FEB,MAR,APR,MAY,JUN,JUL,AUG,SEP,OCT,NOV,DEC}'::text[]
        when 'weekday' then '{SUN,MON,TUE,WED,THU,FRI,SAT}'::text[] else '{}' end;
    found   int[] := '{}';
    part    text[];
    first   int[];
    last    int[];
begin
    if spec = '*' then
        return array(select generate_series(lowest, highest));
    elsif strpos(spec, ',') > 0 then
        foreach spec in array string_to_array(spec, ',') loop
            found := found || fleet.cron_field(field, spec);
            if found is null or fleet.cron_field(field, spec) is null then
                return null;
            end if;
        end loop;
        return found;
    elsif field = 'weekday' and spec ~ 'L' then
        return case when spec ~ '^0*[0-7]L$' then array[900 + right(rtrim(spec, 'L'), 1)::int] end;
    elsif field = 'weekday' and spec ~ '#' then
        part := regexp_match(spec, '^(.*?)#0*([1-5])$');
        first := fleet.cron_field(field, part[1]);
        return case when part[1] !~ '[-/*#]' and cardinality(first) = 1
                    then array[100 * part[2]::int + first[1]] end;
    elsif spec ~ '/' then
        part := regexp_match(spec, '^([^/]*)/0*([1-9][0-9]*)$');
        first := fleet.cron_field(field, part[1]);
        if first is null or first[1] < 0 then
            return first;
        end if;
        return array(select s.v from (
                         select u.v, row_number() over (order by u.v) - 1 as n
                           from unnest(case when cardinality(first) = 1
                                            then array(select generate_series(first[1], highest))
                                            else first end) u (v)) s
                      where s.n % least(part[2]::numeric, 1000)::int = 0);
    elsif spec ~ '-' then
        part := regexp_match(spec, '^([^-]*)-([^-]*)$');
        if part[1] in ('L', 'LW') or part[2] in ('L', 'LW') then
            return null;
        end if;
        first := fleet.cron_field(field, part[1]);
        last := fleet.cron_field(field, part[2]);
        return case when cardinality(first) = 1 and cardinality(last) = 1 and last[1] >= first[1]
                    then array(select generate_series(first[1], last[1])) end;
    elsif field = 'day' and spec in ('L', 'LW') then
        return array[case spec when 'L' then -1 else -2 end];
    elsif spec = any (names) then
        return array[array_position(names, spec) - 1 + lowest];
    elsif spec ~ '^0*[0-9]{1,2}$' and right(spec, 2)::int between lowest and highest then
        return array[right(spec, 2)::int];
    end if;
    return null;
end
$$;

-- Refuse a cron expression that cannot be read, or that matches no day in 28 years, after which weekdays,
-- dates and leap years come again in the same order.
create function fleet.check_cron(cron text) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp
as $$
declare
    names    constant text[] := '{second,minute,hour,day,month,weekday}';
    parts    text[] := regexp_split_to_array(upper(btrim(cron, E' \t\n')), '\s+');
    days     int[];
    months   int[];
    weekdays int[];
    together boolean;
begin
    if lower(btrim(cron)) in ('@yearly', '@annually', '@monthly', '@weekly', '@daily', '@midnight', '@hourly')
    then
        return;
    end if;
    if cardinality(parts) = 5 then
        parts := '0'::text || parts;
    end if;
    if cron is null or cron ~ '^\s*@' or char_length(cron) > 200 or cardinality(parts) <> 6 then
        raise exception 'fleet.schedule: cron % has the wrong fields', quote_nullable(left(cron, 80))
            using errcode = '22023',
                  hint = 'Give minute hour day month weekday, six with seconds first, or @yearly, '
                         '@monthly, @weekly, @daily or @hourly.';
    end if;
    for i in 1 .. 6 loop
        if fleet.cron_field(names[i], parts[i]) is null then
            raise exception 'fleet.schedule: cron % cannot work: bad %', quote_literal(cron), names[i]
                using errcode = '22023',
                      hint = 'Give minute hour day month weekday, or six with seconds first.';
        end if;
    end loop;
    days := fleet.cron_field('day', parts[4]);
    months := fleet.cron_field('month', parts[5]);
    weekdays := fleet.cron_field('weekday', parts[6]);
    together := parts[4] like '*%' or parts[6] like '*%';  -- as Debian's cron has it
    if not exists (
        select from (
            select d.dom, d.dow, d.last,
                   d.dom = any (days) or -1 = any (days) and d.dom = d.last
                   or -2 = any (days) and d.dow between 1 and 5
                      and (d.dom = d.last or d.dow = 5 and d.dom > d.last - 3) as by_day,
                   weekdays && array[d.dow, 100 * ((d.dom + 6) / 7) + d.dow]
                   or d.dow = 0 and weekdays && array[7, 100 * ((d.dom + 6) / 7) + 7]
                   or d.dom + 7 > d.last and (900 + d.dow = any (weekdays)
                                              or d.dow = 0 and 907 = any (weekdays)) as by_weekday
              from (select extract(day from g)::int as dom, extract(dow from g)::int as dow,
                           extract(day from date_trunc('month', g) + interval '1 month - 1 day')::int as last
                      from generate_series(timestamp '2024-01-01', '2051-12-31', '1 day') g
                     where extract(month from g)::int = any (months)) d) m
         where case when together then m.by_day and m.by_weekday else m.by_day or m.by_weekday end)
    then
        raise exception 'fleet.schedule: cron % cannot work: it matches no day', quote_literal(cron)
            using errcode = '22023', hint = 'Give a day that its months have.';
    end if;
end
$$;

-- ── made by hand ─────────────────────────────────────────────────────────────────────────────────

-- Make a schedule, or change it: select fleet.schedule('nightly', '0 3 * * *', 'report', '{"days": 1}',
-- timezone => 'Europe/Rome'). What is said by hand beats what an application declares, until
-- fleet.unschedule. 'made', 'changed', or 'same'.
create function fleet.schedule(
    name text, cron text, job text, input jsonb default 'null', timezone text default null,
    missed text default 'latest', key text default null, by text default null)
returns text
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    zone   text[] := regexp_match(cron, '^([^][]*)\[([^][]+)\]\s*$');
    before fleet.schedule;
    calendar boolean;
begin
    if zone is not null then
        if timezone is not null then
            raise exception 'fleet.schedule: cron % names a zone and timezone another',
                            quote_literal(cron) using errcode = '22023', hint = 'Leave one out.';
        end if;
        cron := zone[1];
        timezone := zone[2];
    end if;
    timezone := coalesce(timezone, 'UTC');
    perform fleet.check_name('schedule', name);
    perform fleet.check_name('job', job);
    perform fleet.check_options(0, null, null, key, null, 'while_live');
    perform fleet.check_payload(input);
    perform fleet.check_cron(cron);
    if missed is null or missed not in ('latest', 'skip', 'all') then
        raise exception 'fleet.schedule: missed % is unknown', quote_nullable(missed)
            using errcode = '22023', hint = 'Give latest, skip or all.';
    end if;
    if not exists (select from pg_timezone_names z where z.name = timezone) then
        raise exception 'fleet.schedule: there is no time zone %', quote_literal(timezone)
            using errcode = '22023', hint = 'Give an IANA name such as ''Europe/Berlin''.';
    end if;

    perform pg_notify('fleet_control', 'schedule');
    insert into fleet.schedule as s (name, cron, timezone, job, input, key, missed, origin, created_by)
    values (schedule.name, btrim(schedule.cron), schedule.timezone, schedule.job,
            coalesce(schedule.input, 'null'), schedule.key, schedule.missed, 'hand',
            coalesce(schedule.by, session_user))
        on conflict do nothing;
    if found then
        perform fleet.note('schedule.add', name, jsonb_build_object('cron', cron, 'job', job), by);
        return 'made';
    end if;
    select s.* into before from fleet.schedule s where s.name = schedule.name for update;
    if not found then
        raise exception 'fleet.schedule: schedule % was removed just now', quote_literal(name)
            using errcode = '40001', hint = 'Try again.';
    end if;
    calendar := (before.cron, before.timezone) = (btrim(schedule.cron), schedule.timezone);
    if calendar and before.origin = 'hand'
       and (before.job, before.input, before.key, before.missed)
           is not distinct from (schedule.job, coalesce(schedule.input, 'null'), schedule.key, schedule.missed)
    then
        return 'same';
    end if;
    update fleet.schedule s
       set cron = btrim(schedule.cron), timezone = schedule.timezone, job = schedule.job,
           input = coalesce(schedule.input, 'null'), key = schedule.key, missed = schedule.missed,
           origin = 'hand', fingerprint = null, revision = nextval('fleet.revision'), error = null,
           created_by = coalesce(schedule.by, session_user), created_at = fleet.now(),
           next_at = case when calendar then s.next_at end,
           since = case when calendar then s.since else fleet.now() end
     where s.name = schedule.name;
    perform fleet.note('schedule.change', name, jsonb_build_object('cron', cron, 'job', job), by);
    return 'changed';
end
$$;

-- Remove a schedule; false: there is none. One that an application declares too is the application's
-- again from then on; one that is the application's goes with its code.
create function fleet.unschedule(name text, by text default null) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if exists (select from fleet.schedule s
                where s.name = unschedule.name and s.origin = 'app' and fleet.is_declared(s.name)) then
        raise exception 'fleet.unschedule: schedule % is declared by an application that runs',
                        quote_literal(name)
            using errcode = '55000',
                  hint = format('Take it out of the code, or pause it: fleet schedule pause %s', name);
    end if;
    delete from fleet.schedule s where s.name = unschedule.name;
    if not found then
        return false;
    end if;
    if fleet.is_declared(name) then
        perform fleet.apply_declared(name);
    else
        delete from fleet.declared d where d.name = unschedule.name;
    end if;
    perform fleet.note('schedule.remove', name, by => by);
    perform pg_notify('fleet_control', 'schedule');
    return true;
end
$$;

-- Let a schedule rest, or fire again: what would have fired meanwhile was not missed, it was not wanted.
create function fleet.pause_schedule(name text, pause boolean default true, by text default null)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    update fleet.schedule s
       set paused = pause, revision = nextval('fleet.revision'), next_at = null, since = fleet.now(), error = null
     where s.name = pause_schedule.name and s.paused <> pause;
    if found then
        perform fleet.note(case when pause then 'schedule.pause' else 'schedule.resume' end, name, by => by);
        perform pg_notify('fleet_control', 'schedule');
        return true;
    end if;
    if not exists (select from fleet.schedule s where s.name = pause_schedule.name) then
        raise exception 'fleet.pause_schedule: there is no schedule %', quote_literal(name)
            using errcode = 'P0002', hint = 'fleet schedule list shows those there are.';
    end if;
    return false;
end
$$;

-- ── declared by applications ─────────────────────────────────────────────────────────────────────

-- The same minute as for jobs: supervisors say every 20 s what their applications declare.
create function fleet.is_declared(name text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select exists (select from fleet.declared d
                    where d.name = is_declared.name and d.last_seen > fleet.now() - interval '1 minute')
$$;

-- Let the declared definition that counts be the schedule, unless somebody has said otherwise by hand.
create function fleet.apply_declared(the_name text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    wanted   fleet.declared;
    before   fleet.schedule;
    calendar boolean;
begin
    select d.* into wanted from fleet.declared d where d.name = the_name
     order by d.last_seen > fleet.now() - interval '1 minute' desc, d.first_seen desc, d.fingerprint limit 1;
    if not exists (select from fleet.schedule s where s.name = the_name) then
        insert into fleet.schedule (name, cron, timezone, job, input, key, missed, origin, fingerprint)
        values (the_name, wanted.cron, wanted.timezone, wanted.job, wanted.input, wanted.key, wanted.missed,
                'app', wanted.fingerprint)
            on conflict do nothing;
        return;
    end if;
    -- Somebody's open transaction that changes it must not hold up a host: in 20 s we are back.
    select s.* into before from fleet.schedule s
     where s.name = the_name and s.origin = 'app' and s.fingerprint <> wanted.fingerprint
       for update skip locked;
    if not found then
        return;
    end if;
    calendar := (before.cron, before.timezone) = (wanted.cron, wanted.timezone);
    update fleet.schedule s
       set cron = wanted.cron, timezone = wanted.timezone, job = wanted.job, input = wanted.input,
           key = wanted.key, missed = wanted.missed, fingerprint = wanted.fingerprint,
           revision = nextval('fleet.revision'), error = null,
           next_at = case when calendar then s.next_at end,
           since = case when calendar then s.since else fleet.now() end
     where s.name = the_name;
end
$$;

-- Write down what a live application declares, or that it still does: [{name, fingerprint, cron, …}, …].
-- The input is text in there: a JSON null would be read as none.
create function fleet.declare(document jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    its_name text;
begin
    -- In the order of names, whoever declares: two hosts that start at once cannot deadlock.
    insert into fleet.declared as d (name, fingerprint, cron, timezone, job, input, key, missed)
    select n.name, n.fingerprint, n.cron, n.timezone, n.job, n.input::jsonb, n.key, n.missed
      from jsonb_to_recordset(document) n (name text, fingerprint text, cron text, timezone text,
                                           job text, input text, key text, missed text)
     order by n.name
        on conflict on constraint declared_pkey do update set last_seen = fleet.now();
    for its_name in select n ->> 'name' from jsonb_array_elements(document) n order by 1 loop
        perform fleet.apply_declared(its_name);
    end loop;
end
$$;

-- ── firing ───────────────────────────────────────────────────────────────────────────────────────

-- What a beat brings: the schedules that are due, or whose next tick nobody has computed. Those that are
-- declared, and those made by hand, come before stale ones, which may be many and are not fired.
create function fleet.due_schedules() returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'name', s.name, 'revision', s.revision, 'cron', s.cron, 'timezone', s.timezone,
               'job', s.job, 'missed', s.missed, 'since', s.since, 'next_at', s.next_at,
               'by_hand', s.by_hand, 'declared', s.declared)), '[]')
      from (select d.*, d.origin = 'hand' as by_hand,
                   -- Not fleet.is_declared, which would be entered for each: 1,000 stale ones took 14 ms.
                   exists (select from fleet.declared l
                            where l.name = d.name and l.last_seen > fleet.now() - interval '1 minute')
                       as declared
              from fleet.schedule d
             where not d.paused and (d.next_at is null or d.next_at <= fleet.now())
             order by declared desc, by_hand desc, d.next_at nulls first
             limit 200) s
$$;

-- One task a tick, and next_at moved, or nothing at all. Null: somebody else has fired, or changed the
-- schedule, or is at it. A job that is not there yet costs no tick: the error is noted, and next_at stays.
create function fleet.fire(
    the_name text, the_revision bigint, expected timestamptz, ticks timestamptz[], following timestamptz)
returns jsonb
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    its   fleet.schedule;
    at    timestamptz;
    task  bigint;
    fired bigint[] := '{}';
begin
    select s.* into its from fleet.schedule s
     where s.name = the_name and s.revision = the_revision and not s.paused
       and s.next_at is not distinct from expected
       for update skip locked;
    if not found then
        return null;
    end if;
    begin
        foreach at in array ticks loop
            continue when exists (select from fleet.tick t where t.schedule = its.name and t.tick = at);
            task := fleet.enqueue_scheduled(its.name);
            insert into fleet.tick (schedule, tick, task) values (its.name, at, task);
            fired := fired || task;
        end loop;
    exception when others then
        update fleet.schedule s set error = sqlerrm
         where s.name = its.name and s.error is distinct from sqlerrm;
        return jsonb_build_object('error', sqlerrm);
    end;
    update fleet.schedule s
       set next_at = following, error = null,
           last_tick = coalesce(ticks[cardinality(ticks)], s.last_tick), last_task = coalesce(task, s.last_task)
     where s.name = its.name;
    return jsonb_build_object('tasks', fired);
end
$$;

create function fleet.enqueue_scheduled(the_name text) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    its   fleet.schedule;
    known fleet.job;
begin
    select s.* into its from fleet.schedule s where s.name = the_name;
    select j.* into known from fleet.definition_of(its.job) j;
    -- A key that is computed in Python came with the declaration, if only to say that there is none.
    if its.origin = 'app' and known.key_computed then
        return (select e.id from fleet.enqueue_one(
            its.job, its.input, known.queue, known.step, known.priority, key => its.key) e);
    end if;
    return (select e.id from fleet.enqueue_named(its.job, its.input, key => its.key) e);
end
$$;

-- Why a host cannot compute its ticks: a zone that it does not know, say.
create function fleet.note_schedule_error(the_name text, the_revision bigint, problem text) returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$
    update fleet.schedule s set error = problem
     where s.name = the_name and s.revision = the_revision and s.error is distinct from problem
$$;

-- One task now, whatever the calendar says, which goes on as it was. A tick of its own.
create function fleet.fire_now(name text, by text default null) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    its  fleet.schedule;
    task bigint;
    at   timestamptz := fleet.now();
begin
    select s.* into its from fleet.schedule s where s.name = fire_now.name;
    if not found then
        raise exception 'fleet.fire_now: there is no schedule %', quote_literal(name)
            using errcode = 'P0002', hint = 'fleet schedule list shows those there are.';
    end if;
    task := fleet.enqueue_scheduled(its.name);
    loop
        insert into fleet.tick (schedule, tick, task, fired_by)
        values (its.name, at, task, coalesce(fire_now.by, session_user))
            on conflict do nothing;
        exit when found;
        at := at + interval '1 microsecond';
    end loop;
    perform fleet.note('schedule.fire', name, jsonb_build_object('task', task), by);
    return task;
end
$$;

-- ── what is over ─────────────────────────────────────────────────────────────────────────────────

-- Called by fleet.maintain. A schedule that is stale goes once it has been due for 30 days and nobody has
-- fired it: under stale_schedules = "manual" that never happens.
create or replace function fleet.forget_schedules() returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    month  constant interval := '30 days';
    ticks  bigint;
    others bigint;
begin
    delete from fleet.tick t
     where t.ctid = any (array(select o.ctid from fleet.tick o
                                where o.fired_at < fleet.now() - month order by o.fired_at limit 5000));
    get diagnostics ticks = row_count;
    delete from fleet.schedule s
     where s.origin = 'app' and not s.paused and coalesce(s.next_at, s.since) < fleet.now() - month
       and not exists (select from fleet.declared d
                        where d.name = s.name and d.last_seen > fleet.now() - month);
    delete from fleet.declared d
     where d.last_seen < fleet.now() - month
       and not exists (select from fleet.schedule s
                        where s.name = d.name and s.fingerprint = d.fingerprint);
    get diagnostics others = row_count;
    return ticks + others;
end
$$;

-- As in 0004, and the schedules that are due. With no replica left all of them look stale; so here one is
-- out of use only if its queue's jobs have been seen since without it.
create or replace function fleet.backlog(queue text) returns bigint
language sql stable security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set jit = off
as $$
    -- A count an index: one condition over all of them would read the whole table.
    select (select count(*) from fleet.task t where t.queue = backlog.queue and t.pos is not null)
         + (select count(*) from fleet.task t
             where t.due_at <= fleet.now() and t.waiting_for is null and t.queue = backlog.queue)
         + (select count(*) from fleet.task t
             where t.due_at <= fleet.now() and t.waiting_for is not null and t.queue = backlog.queue)
         + (select count(*) from fleet.schedule s
             where not s.paused and (s.next_at is null or s.next_at <= fleet.now())
               and (select j.queue from fleet.definition_of(s.job) j) = backlog.queue
               and (s.origin = 'hand'
                    or (select max(d.last_seen) from fleet.declared d where d.name = s.name)
                       > (select max(j.last_seen) from fleet.job j where j.queue = backlog.queue)
                         - interval '1 minute'))
$$;

revoke execute on all functions in schema fleet from public;
