"""What a pass does strip by strip: slabs, kernels on them, maps kept in slabs, in pages or in host memory, statistics.

Nothing here chooses: it runs what was planned, on tensors or, for the planner, on slabs without data.
"""
