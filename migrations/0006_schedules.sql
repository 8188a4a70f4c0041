-- Schedules: a cron expression with a time zone that enqueues a job.

create table fleet.schedule (
    name fleet.name primary key
);
