-- What pipeline_read reads next in this session: it is a COPY and takes no parameters.
SELECT set_config('queen.slice_ids', $1, false), set_config('queen.slice_from', $2, false),
       set_config('queen.slice_upto', $3, false), set_config('queen.slice_headers', $4, false)
