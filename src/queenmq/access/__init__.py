"""Who may do what: permissions by queue and group, and the tokens that Queen makes."""
