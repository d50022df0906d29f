"""The weights of a MODEL within a budget: which stay on the card, which are streamed, and when.

Schedules are computed by the engine of the same name; the host's memory manager goes on owning the weights.
"""
