"""fedlib: the library of the course on horizontal federated learning.

One small module for each idea a chapter teaches.  ``import fedlib`` is cheap: nothing heavy
(torch, scikit-learn, matplotlib) is imported until a module that needs it is.
"""

__version__ = "0.1.0"
