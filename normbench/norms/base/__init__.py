"""The parts from which every family of normalizers is built.

Begin with `layer`: the interfaces of a normalizer and its layers. `moments` and `running` compute
and keep statistics, `closed_form` has their backward passes and those of the maps that follow,
`activations`, `standardized_conv` and `residual` are what stands around a layer, `options` checks
the values of a yaml, `reference_ops` serves the references. Nothing here knows a family.
"""
