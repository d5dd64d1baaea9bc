"""The cost of a deadline, simulated on markets of Spot VMs."""
