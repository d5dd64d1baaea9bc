"""What the ends of a Dask cluster on VMs agree upon: its declaration, and the versions that fit
each other.
"""
