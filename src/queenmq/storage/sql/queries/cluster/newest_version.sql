SELECT last_value FROM queen.versions
