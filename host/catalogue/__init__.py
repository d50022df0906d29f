"""What public model files hold, for models that are not on this machine: a prediction before the download.

``catalogue.json`` names the files and the host's own networks in them, as data; no weight and no header is stored. The
host's classes, built on torch's meta device, give the names and shapes of the tensors.
"""
