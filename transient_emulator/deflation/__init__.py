"""VMs that shrink instead of being taken away: who gives how much, and how a VM is kept to what is left to it."""
