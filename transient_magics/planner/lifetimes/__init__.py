"""How long transient VMs live: models fitted to what was observed, ended by revocation or not."""
