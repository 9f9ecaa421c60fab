"""The command line becomes cells, and names in conf/ become objects.

Begin with `compose` (Hydra's part), `cells` (what a cell is) and `build` (a yaml becomes an
object).
"""
