"""Outputs and gradients of the papers' official code, and the scripts that made them.

`parameters` computes inputs and weights from names and integers, for the scripts and for
tests/test_official.py, so the arrays here are results alone. A script runs the official code of a
checkout in double precision and writes its arrays to this folder:

    cd tests && python -m official.make_nf CHECKOUT

Its docstring names the repository, the commit and the packages that it needs. They are no
dependencies of normbench, so give them an environment of their own. Nothing of the official code is
in this repository.
"""
