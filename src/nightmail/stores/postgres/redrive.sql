-- name: redrive
-- Move dead letters back to the messages: those that were stored are deleted, and no others. Leased or locked dead
-- letters are skipped; so are all but the last of several with one timer id, and any whose timer id is taken in its
-- target queue. Ids come sorted and unique; places give the order in which the messages are stored.
with moment as materialized (
    select coalesce(:now::timestamptz, clock_timestamp()) as now
), letters as materialized (
    select d.id, coalesce(:to::text, d.queue) collate "C" as queue,
           case when :keep_timer_ids::boolean then d.timer_id end as timer_id, d.ordering_key, d.priority, d.body,
           (:headers::text[])[width_bucket(d.id, :ids::bigint[])] as headers,
           (:places::integer[])[width_bucket(d.id, :ids::bigint[])] as place
    from nightmail_dead as d
    where d.id = any(:ids::bigint[])
      and (d.token is null or d.lease_until <= coalesce(:now::timestamptz, statement_timestamp()))
    order by d.id
    for update skip locked
), chosen as materialized (
    select ranked.*
    from (
        select letters.*, row_number() over (partition by queue, timer_id order by place desc) as newest from letters
    ) as ranked
    where ranked.timer_id is null or ranked.newest = 1
), stored as (
    insert into nightmail_messages
        (queue, priority, due_at, published_at, timer_id, timer_key, ordering_key, headers, body)
    select queue, priority, now, now, timer_id, timer_id, ordering_key, headers, body
    from chosen, moment
    order by place
    on conflict (queue, timer_key) where timer_key is not null do nothing
    returning id, queue, timer_key
), gone as (
    delete from nightmail_dead as d
    where d.id = any(array(
        select chosen.id from chosen
        where chosen.timer_id is null
           or exists (select from stored where stored.queue = chosen.queue and stored.timer_key = chosen.timer_id)))
)
select array(select id from stored order by id) as ids,
       array(select pg_notify(:channel, fuller.queue)::text from (select distinct queue from stored) as fuller) as rung;
