"""Bags of jobs: when each begins, and why it ends (`decisions`, pure); what is done about it, and what comes home
(`conduct`). What a bag computes where, its driver decides on a VM (`bags.driver`)."""
