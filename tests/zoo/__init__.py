"""Ordinary Keras scripts, each run by Python and trained unedited as a cell of `%%train`."""
