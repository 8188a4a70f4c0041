-- Partitions ahead, old ones gone, old dead letters and old lines of the log gone. Called by the supervisors
-- every few minutes; any number of them at once, since whoever comes second finds nothing to do.
--
-- CREATE … PARTITION OF and a plain DROP wait for every open reader of the parent, and every finish
-- waits behind them: so a partition is made apart and ATTACHed (which blocks no insert), and a drop
-- gives up after 100 ms and is tried again the next time.

-- Most rows find their partition ready. What a job keeps for longer than three weeks lands in the default
-- one, and its day gets a partition at the next call, before it can fill: the rows move with it.

-- Ticks and schedules that are over; 0006, which brings them, says which those are.
create function fleet.forget_schedules() returns bigint language sql as 'select 0::bigint';

-- One action a row: made, dropped, busy (tried, will be tried again), deleted. At most one partition
-- is dropped a call, so that the lock it takes on the parent is held for that drop only, and at most
-- 5,000 rows are deleted: call again while anything was dropped or deleted.
create function fleet.maintain() returns table (action text, relation text, n bigint)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
as $$
declare
    parent text;
    day    date;
    part   text;
    today  date := (fleet.now() at time zone 'UTC')::date;
    gone   bigint;
begin
    if not pg_try_advisory_xact_lock(hashtext('fleet.maintain')) then
        return;
    end if;
    perform set_config('lock_timeout', '100ms', true);

    foreach parent in array array['archive', 'attempt'] loop
        -- The default retention is 14 days, and a week ahead of it is ready for a week without us.
        -- More than a year ahead a row waits in the default partition for its day to come nearer.
        for day in execute format(
            'select %1$L::date + d from generate_series(0, 21) d
             union
             select (keep_until at time zone ''UTC'')::date from fleet.%2$I
              where keep_until >= %1$L::date and keep_until < %1$L::date + 400
             order by 1', today, parent || '_default')
        loop
            part := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
            continue when to_regclass(format('fleet.%I', part)) is not null;
            begin
                execute format('create table fleet.%I (like fleet.%I including all)', part, parent);
                execute format(
                    'with moved as (delete from fleet.%I where keep_until >= %L and keep_until < %L
                                    returning *)
                     insert into fleet.%I select * from moved', parent || '_default',
                    format('%s 00:00+00', day), format('%s 00:00+00', day + 1), part);
                execute format(
                    'alter table fleet.%I attach partition fleet.%I for values from (%L) to (%L)',
                    parent, part, format('%s 00:00+00', day), format('%s 00:00+00', day + 1));
                action := 'made'; relation := part; n := 1;
                return next;
            exception
                -- A reader of the default partition, or a row of that day that came just now: the
                -- default partition goes on serving.
                when lock_not_available or check_violation then
                    action := 'busy'; relation := part; n := 0;
                    return next;
            end;
        end loop;

        execute format('delete from fleet.%I where ctid = any (array(select ctid from fleet.%I
                        where keep_until < fleet.now() limit 5000))',
                       parent || '_default', parent || '_default');
        get diagnostics gone = row_count;
        if gone > 0 then
            action := 'deleted'; relation := parent || '_default'; n := gone;
            return next;
        end if;
    end loop;

    delete from fleet.buried b
     where b.id = any (array(select o.id from fleet.buried o
                              where o.keep_until < fleet.now() order by o.keep_until limit 5000));
    get diagnostics gone = row_count;
    if gone > 0 then
        action := 'deleted'; relation := 'buried'; n := gone;
        return next;
    end if;

    -- One that is taken anew at this moment is locked, and not over.
    delete from fleet.slot s
     where s.until < fleet.now()
       and s.ctid = any (array(select o.ctid from fleet.slot o
                                where o.until < fleet.now() order by o.until limit 5000
                                  for update skip locked));
    get diagnostics gone = row_count;
    if gone > 0 then
        action := 'deleted'; relation := 'slot'; n := gone;
        return next;
    end if;

    delete from fleet.log l
     where l.id = any (array(select o.id from fleet.log o
                              where o.at < fleet.now() - interval '90 days' order by o.at limit 5000));
    get diagnostics gone = row_count;
    if gone > 0 then
        action := 'deleted'; relation := 'log'; n := gone;
        return next;
    end if;

    gone := fleet.forget_schedules();
    if gone > 0 then
        action := 'deleted'; relation := 'tick'; n := gone;
        return next;
    end if;

    select c.relname into part
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid
     where i.inhparent in ('fleet.archive'::regclass, 'fleet.attempt'::regclass)
       and c.relname ~ '^(archive|attempt)_[0-9]{8}$'
       and to_date(right(c.relname, 8), 'YYYYMMDD') < today
     order by right(c.relname, 8), c.relname
     limit 1;
    if part is not null then
        begin
            execute format('drop table fleet.%I', part);
            action := 'dropped'; relation := part; n := 1;
            return next;
        exception when lock_not_available then
            action := 'busy'; relation := part; n := 0;
            return next;
        end;
    end if;
end
$$;

-- Functions are for those who are granted them: fleet grant client|app|worker ROLE.
revoke execute on all functions in schema fleet from public;
