"""What is learnt from a bag's results: a value with its standard deviation at any point, and where
to compute next.

scikit-learn and SciPy are imported where they are used; what they found is kept as numbers, never
as a pickle.
"""
