"""Numbers before money: what a cluster will take, cost and risk. NumPy and SciPy are imported only in here."""
