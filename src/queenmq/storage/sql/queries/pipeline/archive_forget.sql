-- A lake is no longer waited for by retention; its files and what is known about them stay.
DELETE FROM queen.archive_lakes l USING queen.queues q WHERE l.lake = $1::text AND q.id = l.queue_id AND q.name = $2::text
