"""One exact encode or decode over several workers: this machine's devices, or those of a Ray cluster that the server's
owner has named.

A workflow names workers, never an address. :mod:`.named` reads what the owner wrote; :mod:`.gathered` cuts the input
into bands, has them computed and puts the result together; :mod:`.devices` and :mod:`.cluster` are the two kinds of
crews; :mod:`.work` is what each worker does; :mod:`.carried` is what Ray brings to other machines.
"""
