"""What time and memory go into; a module a kind, with `bench(words)`."""
