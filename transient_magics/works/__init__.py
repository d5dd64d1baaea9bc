"""The kinds of work, one package for each.

They are above all other packages: a kind imports what it needs, and the frame reaches a kind
through `kinds` alone.
"""
