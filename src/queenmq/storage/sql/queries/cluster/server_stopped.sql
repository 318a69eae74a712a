-- A server ($1, of the epoch $2) stops: nobody has to wait until it counts as gone.
UPDATE queen.server_versions SET has_stopped = true WHERE server_id = $1 AND epoch = $2
