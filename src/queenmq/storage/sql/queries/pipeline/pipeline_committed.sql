SELECT rows, duplicates FROM queen.pipeline_commits WHERE sink = $1 AND epoch = $2
