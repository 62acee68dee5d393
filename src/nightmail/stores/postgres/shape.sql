-- The actual schema, for `check` to compare with the expected one. Tables come without our prefix.

-- name: columns
-- Every column of our tables: its type, its collation, whether it may be null, and whether it has a default.
select substr(c.relname, length(:prefix::text) + 2) as "table", a.attname::text as name,
       concat_ws(' ',
           replace(format_type(a.atttypid, a.atttypmod), 'timestamp with time zone', 'timestamptz'),
           case when a.attcollation <> t.typcollation then 'collate ' || quote_ident(l.collname) end,
           case when a.attnotnull then 'not null' end,
           case when a.attidentity = 'a' then 'identity' end,
           case when a.atthasdef then 'default' end) as definition
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type as t on t.oid = a.atttypid
left join pg_collation as l on l.oid = a.attcollation
where c.oid in (select to_regclass(named) from unnest(:tables::text[]) as named)
order by 1, 2;

-- name: indexes
-- Every usable index of our tables, with its definition.
select substr(n.relname, length(:prefix::text) + 2) as "table", c.relname::text as name,
       concat(case when i.indisunique then 'unique ' end, substring(pg_get_indexdef(i.indexrelid) from ' USING (.*)$'))
           as definition
from pg_index as i
join pg_class as c on c.oid = i.indexrelid
join pg_class as n on n.oid = i.indrelid
where i.indrelid in (select to_regclass(named) from unnest(:tables::text[]) as named)
      and i.indisvalid and i.indisready
order by 1, 2;

-- name: constraints
-- Every check constraint of our tables.
select substr(c.relname, length(:prefix::text) + 2) as "table", k.conname::text as name,
       pg_get_constraintdef(k.oid) as definition
from pg_constraint as k
join pg_class as c on c.oid = k.conrelid
where k.conrelid in (select to_regclass(named) from unnest(:tables::text[]) as named) and k.contype = 'c'
order by 1, 2;

-- name: options
-- The storage options of the messages table, such as fillfactor.
select coalesce(array_to_string(c.reloptions, ' '), '') as options from pg_class as c
where c.oid = to_regclass(:messages::text);

-- name: rights
-- What this account may do with our tables. A right on some columns counts, too.
select substr(c.relname, length(:prefix::text) + 2) as "table", p.permit
from pg_class as c
cross join (values ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) as p (permit)
where c.oid in (select to_regclass(named) from unnest(:tables::text[]) as named)
      and case p.permit when 'DELETE' then has_table_privilege(c.oid, p.permit)
              else has_any_column_privilege(c.oid, p.permit) end;

-- name: meta
-- What every process must agree on.
select look_interval, notice_horizon from nightmail_meta;
