-- Redriving dead letters. The write lock is held: no timer id or dead letter is taken in between.

-- name: movable
-- Those of these dead letters that are not leased: target queue, timer id, and whether a message there owns it.
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
-- Store these dead letters as new messages, in this order: pairs of an id and the new headers. Two with the same timer
-- id, or one whose timer id is taken, would be refused and roll back everything.
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
