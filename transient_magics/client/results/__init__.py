"""What a run leaves, used on this machine: its model, and its curves in TensorBoard."""
