-- One change of declarations at a time; supervisors and drivers go on.
LOCK TABLE queen.pipelines IN SHARE ROW EXCLUSIVE MODE
