"""Following journals: one thread for all that want to know, and events as they come."""
