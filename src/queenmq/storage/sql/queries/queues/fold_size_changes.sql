SELECT queen.fold_size_changes($1)
