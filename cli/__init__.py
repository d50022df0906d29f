"""Commands on workflow files and on this machine: `estimate`, `fit`, `calibrate`, `check`.

Arguments, files and exit statuses alone: what they ask is answered in host/ and graph/.
"""
