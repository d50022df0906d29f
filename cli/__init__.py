"""`estimate` on workflow files, without running them and without a GPU."""
