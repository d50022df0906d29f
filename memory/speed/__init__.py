"""How long work takes, by a roofline: the kernels that a prediction met, on a device whose figures are documented, or
measured there.

What is kept of measurements is in a file; nothing here knows a model or the host.
"""

from .documented import documented
from .history import History, TimedRun
from .kernels import KernelCost, KernelCosts
from .speed import Speed

__all__ = ["History", "KernelCost", "KernelCosts", "Speed", "TimedRun", "documented"]
