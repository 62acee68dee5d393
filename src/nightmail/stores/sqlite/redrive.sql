-- Moving dead letters back among the messages. The write lock is held: nobody takes a name or a letter in between.

-- name: movable
-- Of these letters those that nobody holds: the queue each would go to, its name, and whether a message there bears it.
SELECT
    d.id,
    coalesce(:to, d.queue),
    cast(d.timer_id AS TEXT),
    EXISTS (
        SELECT 1
        FROM nightmail_messages AS m
        WHERE m.queue = coalesce(:to, d.queue) AND m.timer_key = d.timer_id
    )
FROM json_each(:ids) AS letter
CROSS JOIN nightmail_dead AS d
WHERE d.id = letter.value AND (d.lease_until IS NULL OR d.lease_until <= :now);

-- name: redrive
-- Store these letters as new messages, in this order: pairs of an id and the new headers. Two that would bear one name,
-- or one whose name is borne, would be refused and undo all of it.
INSERT INTO nightmail_messages (
    queue, priority, due_at, published_at, timer_id, timer_key, ordering_key, headers, body
)
SELECT
    coalesce(:to, d.queue),
    d.priority,
    :now,
    :now,
    CASE WHEN :keep_timer_ids THEN d.timer_id END,
    CASE WHEN :keep_timer_ids THEN d.timer_id END,
    d.ordering_key,
    json_extract(letter.value, '$[1]'),
    d.body
FROM json_each(:letters) AS letter
CROSS JOIN nightmail_dead AS d
WHERE d.id = json_extract(letter.value, '$[0]')
RETURNING id;
