"""What keeps a spike waiting and an outage harmless: the journal, the operation queue, and who decides between them."""
