"""The kinds of work, one package for each.

They are above all other packages: a kind imports what it needs, and nothing but `kinds.load` imports a kind.
"""
