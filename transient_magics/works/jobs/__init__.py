"""Jobs: commands on VMs, restarted after an interruption, their folders and output copied here."""
