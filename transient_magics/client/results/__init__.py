"""Results of runs: comparisons, trained models, TensorBoard and traces."""
