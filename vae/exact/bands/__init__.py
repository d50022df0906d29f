"""One picture over several workers: each has a band of rows of every map, and gives the others what they read of it.

Every worker records the same module and cuts the same passes; what it computes of them are the rows of its band. Before
a pass the rows beside the bands' borders go from worker to worker, after it the statistics, and attention merges its
running softmax over the workers' keys. How that travels is not here but behind :class:`.peers.Peers`. Start reading at
:class:`.run.BandRun`.
"""
