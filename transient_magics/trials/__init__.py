"""Which points a study tries, and which trials it need not finish."""
