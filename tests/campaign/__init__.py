"""A reliability campaign against a real server: fuzz, interrupts, load, hostile requests, with a line for each case.

`python3 -m tools campaign PART --cases N --seed S --minutes M`. `tests/host/test_campaign.py` runs a slice.
What is found is mended in the pack, not here.
"""
