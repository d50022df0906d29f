"""The recorded computation: nodes, the rows of the picture in them, and what each operation does with a slab of rows.

An operation says which rows it needs, how it computes them and what that takes. How it was recorded is not here, nor
where slabs come from.
"""
