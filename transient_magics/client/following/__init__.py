"""Following of journals: one thread for all subscribers, and events as they are written."""
