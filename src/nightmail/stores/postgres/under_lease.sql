-- What messages and dead letters have in common: a lease. Loaded twice, the second time for the table of the dead
-- letters. As in settle.sql: fenced by id and token only; ids come sorted and unique.

-- name: lock_leased
-- Lock those of these that are still leased under these tokens, skipping locked rows.
select m.id from nightmail_messages as m
where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[width_bucket(m.id, :ids::bigint[])]
order by m.id
for update skip locked;

-- name: still_leased
-- Which of these are still leased under these tokens, locked or not.
select m.id from nightmail_messages as m
where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[width_bucket(m.id, :ids::bigint[])];

-- name: hold
-- Lock these in a caller's transaction, and return those still leased under these tokens.
with meta as materialized (
    select identity = coalesce(:identity::uuid, identity) as ours from nightmail_meta limit 1
), held as materialized (
    select m.id from nightmail_messages as m
    where m.id = any(:ids::bigint[]) and m.token = (:tokens::uuid[])[pg_catalog.width_bucket(m.id, :ids::bigint[])]
      and (select ours from meta)
    order by m.id
    for update
)
select meta.ours, array(select id from held) as ids from meta;
