-- What people tell the fleet: pause, resume, set, purge, and cancel and revive in bulk. Each writes its line
-- of fleet.log; by is who says so, where a person's name means more than the role's.
--
-- What is done in bulk is done in batches, each a call, so that no statement locks a million rows. A call
-- looks at no more than at_most tasks, in the order of their ids, and says in "last" how far it got; null:
-- that was all. The next call is given above => last, and entry => entry, so that one operation is one line of
-- the log, which counts on.

-- ── queues ──────────────────────────────────────────────────────────────────────────────────────────

-- Let settings of a queue beat every host's file, until a moment or until they are reset. What may be set,
-- and to what, fleet queue set and Python check; a host that cannot follow one says so.
create function fleet.set_queue(
    queue text, settings jsonb, until timestamptz default null, by text default null)
returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    perform fleet.check_name('queue', set_queue.queue, 'fleet.set_queue');
    if until <= fleet.now() then
        raise exception 'fleet.set_queue: % is over', until
            using errcode = '22023', hint = 'Give a moment to come, or none.';
    end if;
    insert into fleet.override as o (queue, key, value, until, changed_by)
    select set_queue.queue, v.key, v.value, set_queue.until, coalesce(set_queue.by, session_user)
      from jsonb_each(settings) v
        on conflict on constraint override_pkey do update
       set value = excluded.value, until = excluded.until,
           changed_at = fleet.now(), changed_by = excluded.changed_by;
    perform fleet.note(case when settings ? 'paused' then 'queue.pause' else 'queue.set' end,
                       set_queue.queue,
                       (settings - 'paused') || jsonb_build_object('until', set_queue.until),
                       set_queue.by);
    perform pg_notify('fleet_control', 'queue');
end
$$;

-- Let the files count again for a queue: for these keys, or for all but a pause. False: nothing was set.
create function fleet.reset_queue(queue text, keys text[] default null, by text default null)
returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    gone text[];
begin
    -- What has run out goes with whatever is taken back.
    delete from fleet.override o where o.until <= fleet.now();
    with taken as (
        delete from fleet.override o
         where o.queue = reset_queue.queue
           and (o.key = any (reset_queue.keys) or reset_queue.keys is null and o.key <> 'paused')
        returning o.key)
    select array_agg(t.key order by t.key) into gone from taken t;
    if gone is null then
        return false;
    end if;
    perform fleet.note(case when gone = '{paused}' then 'queue.resume' else 'queue.reset' end,
                       reset_queue.queue,
                       case when gone = '{paused}' then '{}' else jsonb_build_object('keys', gone) end,
                       reset_queue.by);
    perform pg_notify('fleet_control', 'queue');
    return true;
end
$$;

-- select fleet.pause('images', until => now() + '2 h'): nobody claims from it; what runs goes on.
create function fleet.pause(queue text, until timestamptz default null, by text default null)
returns void
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select fleet.set_queue(queue, '{"paused": true}', until, by) $$;

-- False: it was not paused.
create function fleet.resume(queue text, by text default null) returns boolean
language sql volatile security definer set search_path = pg_catalog, pg_temp
as $$ select fleet.reset_queue(queue, '{paused}', by) $$;

-- ── in bulk ─────────────────────────────────────────────────────────────────────────────────────────

-- Write the line of an operation, or count on in the one its first batch wrote; nobody's but its own.
create function fleet.note_batch(
    entry bigint, what text, target text, chosen jsonb, counts jsonb, by text)
returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (select from jsonb_each(counts) c where c.value <> '0') then
        return entry;
    end if;
    update fleet.log l
       set detail = l.detail || (
               select jsonb_object_agg(c.key, coalesce((l.detail ->> c.key)::bigint, 0) + c.value::bigint)
                 from jsonb_each_text(counts) c)
     where l.id = note_batch.entry and l.what = note_batch.what and l.role = session_user;
    if not found then
        entry := fleet.note(what, target, chosen || counts, by);
    end if;
    return entry;
end
$$;

-- Cancel the tasks of a queue, a job, a key: those that match all that is given. Those that run are asked to
-- stop, as fleet.cancel does.
create function fleet.cancel_where(
    queue text default null, job text default null, key text default null,
    at_most int default 5000, above bigint default 0, up_to bigint default null,
    inout entry bigint default null, by text default null,
    out cancelled int, out requested int, out last bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    seen   int;
    ids    bigint[];
    wished bigint[];
begin
    if num_nonnulls(queue, job, key) = 0 then
        raise exception 'fleet.cancel_where: nothing says which tasks'
            using errcode = '22023', hint = 'Give queue =>, job => or key =>; several narrow it down.';
    end if;
    select count(*), max(w.id),
           array_agg(w.id) filter (where (cancel_where.queue is null or w.queue = cancel_where.queue)
                                     and (cancel_where.job is null or w.job = cancel_where.job)
                                     and (cancel_where.key is null or w.key = cancel_where.key))
      into seen, last, ids
      from (select t.id, t.queue, t.job, t.key from fleet.task t
             where t.id > above and t.id <= coalesce(up_to, 9223372036854775807)
             order by t.id limit at_most) w;
    if seen < at_most then
        last := null;
    end if;
    cancelled := fleet.cancel_idle(ids);
    select coalesce(array_agg(t.id), '{}') into wished from fleet.task t where t.id = any (ids);
    requested := cardinality(wished);
    insert into fleet.cancellation (task_id, requested_by)
    select w.id, coalesce(cancel_where.by, session_user) from unnest(wished) w (id)
        on conflict do nothing;
    perform pg_notify('fleet_cancel', w.id::text) from unnest(wished) w (id);
    entry := fleet.note_batch(
        entry, 'task.cancel', null, jsonb_build_object('queue', queue, 'job', job, 'key', key),
        jsonb_build_object('cancelled', cancelled, 'requested', requested), by);
end
$$;

-- Delete what waits in a queue, or its dead letters; never what runs. Nothing is kept of it. What somebody
-- has locked is left.
create function fleet.purge(
    queue text, buried boolean default false,
    at_most int default 5000, above bigint default 0, up_to bigint default null,
    inout entry bigint default null, by text default null,
    out purged int, out last bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    seen int;
    ids  bigint[];
begin
    perform fleet.check_name('queue', purge.queue, 'fleet.purge');
    if purge.buried then
        select count(*), max(w.id), array_agg(w.id) filter (where w.queue = purge.queue)
          into seen, last, ids
          from (select b.id, b.queue from fleet.buried b
                 where b.id > above and b.id <= coalesce(up_to, 9223372036854775807)
                 order by b.id limit at_most) w;
        delete from fleet.buried b
         where b.id = any (array(
                   select d.id from fleet.buried d where d.id = any (ids) for update skip locked));
    else
        select count(*), max(w.id),
               array_agg(w.id) filter (where w.queue = purge.queue and w.state <> 'running')
          into seen, last, ids
          from (select t.id, t.queue, t.state from fleet.task t
                 where t.id > above and t.id <= coalesce(up_to, 9223372036854775807)
                 order by t.id limit at_most) w;
        delete from fleet.task t
         where t.id = any (array(
                   select w.id from fleet.task w
                    where w.id = any (ids) and w.state <> 'running' for update skip locked));
    end if;
    get diagnostics purged = row_count;
    if seen < at_most then
        last := null;
    end if;
    entry := fleet.note_batch(
        entry, 'queue.purge', queue,
        jsonb_build_object('buried', case when purge.buried then true end),
        jsonb_build_object('purged', purged), by);
end
$$;

-- Revive the dead letters of a queue, of a job, that died for a reason, since a moment: those that match all
-- that is given. One that cannot come back stays, and is told of in refused: [{"id": …, "why": …}].
create function fleet.revive_where(
    queue text default null, job text default null, reason text default null,
    since timestamptz default null, step text default null,
    at_most int default 500, above bigint default 0, up_to bigint default null,
    inout entry bigint default null, by text default null,
    out revived bigint[], out refused jsonb, out last bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off
as $$
declare
    seen int;
    ids  bigint[];
    one  bigint;
    why  text;
    hint text;
begin
    if num_nonnulls(queue, job, reason, since) = 0 then
        raise exception 'fleet.revive_where: nothing says which tasks'
            using errcode = '22023',
                  hint = 'Give queue =>, job =>, reason => or since =>; since => ''-infinity'' is all.';
    end if;
    select count(*), max(w.id),
           array_agg(w.id) filter (where (revive_where.queue is null or w.queue = revive_where.queue)
                                     and (revive_where.job is null or w.job = revive_where.job)
                                     and (revive_where.reason is null or w.reason = revive_where.reason)
                                     and (since is null or w.buried_at >= since))
      into seen, last, ids
      from (select b.id, b.queue, b.job, b.reason, b.buried_at from fleet.buried b
             where b.id > above and b.id <= coalesce(up_to, 9223372036854775807)
             order by b.id limit at_most) w;
    if seen < at_most then
        last := null;
    end if;
    revived := '{}';
    refused := '[]';
    foreach one in array coalesce(ids, '{}') loop
        begin
            perform fleet.bring_back(one, step, null);
            revived := revived || one;
        exception
            when no_data_found then
                null; -- somebody else has, meanwhile
            when unique_violation or invalid_parameter_value or object_not_in_prerequisite_state then
                get stacked diagnostics why = message_text, hint = pg_exception_hint;
                refused := refused || jsonb_build_object(
                    'id', one, 'why', replace(why, 'fleet.revive: ', '') || '. ' || hint);
        end;
    end loop;
    entry := fleet.note_batch(
        entry, 'task.revive', null,
        jsonb_build_object('queue', queue, 'job', job, 'reason', reason, 'since', since, 'step', step),
        jsonb_build_object('revived', cardinality(revived), 'refused', jsonb_array_length(refused)), by);
end
$$;

revoke execute on all functions in schema fleet from public;
