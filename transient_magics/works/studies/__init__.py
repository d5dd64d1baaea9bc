"""Studies: trials of a model that differ in their parameters."""
