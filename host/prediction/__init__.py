"""What a step, a decode, an encode or a prompt's text would take, found by running the host's code without data.

Bytes and plans alone: what is done about them is planning's.
"""
