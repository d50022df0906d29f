"""Trainings of the host's models in less memory. Blocks of a model are run again in the backward, as a plan says."""
