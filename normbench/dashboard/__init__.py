"""Workspaces and report pages of Weights & Biases as code: `python -m normbench.dashboard`."""
