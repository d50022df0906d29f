"""`python3 -m tools`: try, test and measure the pack on a machine that has no ComfyUI yet.

The commands and `contract_diff`, which the public CI runs by itself; all else has a room. Nothing here is shipped.
"""
