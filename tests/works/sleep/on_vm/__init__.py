"""The process of a sleep on a VM."""
