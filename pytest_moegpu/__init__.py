"""Gate GPU driver, CUDA and engine upgrades for mixture-of-experts inference, as a pytest plugin."""

__version__ = "0.1.0"

__all__ = ["__version__"]
