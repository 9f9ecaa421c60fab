"""What the normalizers of `normbench.norms` are made of.

Begin with `layer`: the interface of a normalizer and of its layers.
"""
