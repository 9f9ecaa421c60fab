"""What each kind of probe does for the command line: `look` in the module of its name."""
