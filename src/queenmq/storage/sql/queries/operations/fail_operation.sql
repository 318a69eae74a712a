SELECT became, attempts FROM queen.fail_operation($1, $2, $3, $4)
