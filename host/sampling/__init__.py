"""How samplers are driven: guidance in turns, one measured step, a conditioning where there is no prompt.

Which attention a model computes with is not here (attention), nor how its weights are stored (casting, offload).
"""
