"""Data sets, their augmentation, and the three loaders that read their images.

Begin with `dataset`; each data set has a module of its own. `official_files` checks what
torchvision reads, `photographs` lists images in files, `augment`, `augmentation_policies` and
`random_crop` augment them with the random numbers of `counter_rng`. `reading` reads splits in
order, and the ffcv modules write and read the files of `python -m normbench.prepare`.
"""
