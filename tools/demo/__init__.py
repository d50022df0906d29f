"""`python3 -m tools demo`: workflows with stock nodes and with Headroom's, measured and compared.

It speaks to the host over HTTP and never imports it. The benchmarks stand in `benchmarks/`.
"""
