"""The words of the command line that make the run of a row again."""

from normbench.results import Row


def words_of(row: Row) -> list[str]:
    """Return the words of the command line that make the run of `row`."""
    words = []
    for group in ("norm", "model", "data", "reg", "recipe"):
        # timm/resnet50 was typed as model=timm model.name=resnet50.
        library, _, name = str(getattr(row, group)).partition("/")
        words += [f"{group}={library}", *([f"{group}.name={name}"] if name else [])]
    fixed = row.protocol == "fixed_workers"
    words.append(f"protocol={row.protocol}")
    words.append(f"workers={row.workers}" if fixed else f"global_batch={row.global_batch}")
    words += [f"{name}={getattr(row, name)}" for name in ("batch", "seed", "precision")]
    return words + row.options.split()
