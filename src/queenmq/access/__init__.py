"""Who may do what, and who did: permissions by queue and group, tokens that Queen makes, and the audit log."""
