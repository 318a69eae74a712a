SELECT switch, is_on, version FROM queen.maintenance
