"""Studies: trials asked for as workers are free, told as their runs end, pruned in between."""
