"""Which workers a run has that has to be done in time: pure decisions, for the controller that
carries them out and for plans that simulate them. They import no NumPy, as controllers do not.
"""
