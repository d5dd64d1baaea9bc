"""Lifetimes of transient VMs: models of observed VMs, ended by revocation or not."""
