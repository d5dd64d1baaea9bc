"""What follows from events of bags: their own (`events`), and their drivers'
(`protocol.bag.events`), which `fold` adds up to the `state` of a bag.
"""
