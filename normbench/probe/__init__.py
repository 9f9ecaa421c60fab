"""The command `python -m normbench.probe`: measurements inside networks before or after training.

__main__         help and entry; `options` of each kind; `request` parses the words
networks         networks at initialization; `trained_network` those of runs and files
forward_pass     spp and power: kinds of `normbench.measurements`, any network
ratios           the ratios of runs with switchable normalization
noise            `normbench.measurements.gradient_noise` in runs, and predicted test losses
corruptions      accuracies of runs on test images with noise, blur and less contrast
conversion       accuracies of runs whose normalizer is replaced
example_weight, speed, gains
                 kinds of their own, measurement and command in one module
claims           claims of papers about the curves of a figure
output           writes files and prints tables
"""
