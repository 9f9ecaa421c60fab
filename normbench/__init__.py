"""normbench: normalizers compared across images per worker."""

__version__ = "0.1.0"
