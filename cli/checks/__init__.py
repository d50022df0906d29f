"""The parts of `check`, loaded once the host is there: each shows one promise of the pack on the machine it runs on."""
