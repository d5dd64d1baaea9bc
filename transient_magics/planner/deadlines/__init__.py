"""Work that must be done by a deadline, on VMs that come and go: when to wait, when to pay on demand."""
