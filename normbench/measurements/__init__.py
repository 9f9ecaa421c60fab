"""What happens inside a network: the measurements with which the papers explain themselves.

Plain functions of a network and a batch of images. They change nothing: weights, running statistics
and modes are afterwards what they were, and no random number is drawn.

    spp             signal propagation (Brock, De and Smith 2021, section 3)
    power           the power decomposition of normalized maps, and channel-wise linearity
                    (Labatie et al. 2021, eq. 5, 8 and 9)
    ratios          what switchable normalization has learned (Luo et al. 2019, section 4)
    example_weight  images that count in their own statistics (Summers and Dinneen 2020, 3.1)
    speed           steps a second and memory, normalizers in turn
    gains           1 / sqrt(Var g(u)) of any activation

`python -m normbench.probe` is their command line.
"""
