"""Surrogates, which predict values with standard deviations and choose further points of a bag.

scikit-learn and SciPy are imported where they are used. Their results are kept as numbers, never as
pickles.
"""
