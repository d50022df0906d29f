"""`python3 -m tools`: try, test and measure the pack on a machine that has no ComfyUI yet."""
