"""Jobs given to VMs, begun again where they were interrupted, their folders and output brought
here.
"""
