"""Which job goes to which VM, when it is saved, how long a VM is kept, which type is rented; and
what that comes to.
"""
