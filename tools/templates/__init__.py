"""What is written into the pack from its nodes' schemas: the browser's templates, and the English of `locales/`.

No picture is taken here (`pictures`). The graphs that templates are made of are in `workflows/api`.
"""
