"""What a deadline costs, simulated on markets of Spot VMs."""
