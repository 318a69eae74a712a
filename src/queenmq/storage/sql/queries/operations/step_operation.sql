SELECT * FROM queen.step_operation($1, $2, $3)
