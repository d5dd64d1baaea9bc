"""Bags of jobs of which none is special, all that is pure of them: which VM a job goes to
(`policy`), what is learnt from the results and where to compute next (`surrogate`), and whole bags
simulated (`policy.simulate`).
"""
